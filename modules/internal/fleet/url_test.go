package fleet

import (
	"strings"
	"testing"
)

func TestParseURL(t *testing.T) {
	for address, want := range map[string]string{
		"gpu1:8000":                   "http://gpu1:8000",
		"GPU1.example:8000":           "http://gpu1.example:8000",
		"gpu1":                        "http://gpu1:80",
		"http://gpu1":                 "http://gpu1:80",
		"https://gpu1":                "https://gpu1:443",
		"https://gpu1:8443/":          "https://gpu1:8443",
		"HTTPS://gpu1:8443":           "https://gpu1:8443",
		"http://gpu1:8000/engines/a/": "http://gpu1:8000/engines/a",
		"gpu1:8000/v1beta":            "http://gpu1:8000/v1beta",
		"10.0.0.5:8000":               "http://10.0.0.5:8000",
		"[fd00::5]:8000":              "http://[fd00::5]:8000",
		"http://[fd00::5]":            "http://[fd00::5]:80",
		"gpu1:08000":                  "http://gpu1:8000",
		"gpu1:65535":                  "http://gpu1:65535",
		"http://gpu1:8000/a%20b":      "http://gpu1:8000/a%20b",
	} {
		u, err := ParseURL(address)
		if err != nil {
			t.Errorf("ParseURL(%q): %v", address, err)
			continue
		}
		if got := u.String(); got != want {
			t.Errorf("ParseURL(%q) = %s, want %s", address, got, want)
		}
		// What it returns is an address that it takes, and the same one.
		if again, err := ParseURL(u.String()); err != nil || again.String() != want {
			t.Errorf("ParseURL(%q) = %v, %v", want, again, err)
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	for _, c := range []struct{ address, says string }{
		{"", "without a host"},
		{"http://", "without a host"},
		{":8000", "without a host"},
		{"http:///v1", "without a host"},
		{"gpu1:0", `port "0" is not between 1 and 65535`},
		{"gpu1:70000", `port "70000" is not between 1 and 65535`},
		{"gpu1:99999999999999999999", "is not between 1 and 65535"},
		{"gpu1:http", "not a valid address"},
		{"gpu 1:8000", "not a valid address"},
		{"http://gpu1:8000:9000", "not a valid address"},
		{"gpu1:8000\n", "not a valid address"},
		{"ftp://gpu1:21", `scheme "ftp" is not supported: use http or https`},
		{"unix:///run/vllm.sock", `scheme "unix" is not supported`},
		{"gpu1:8000/v1", "give the address without /v1"},
		{"http://gpu1:8000/v1/", "give the address without /v1"},
		{"https://gpu1/engines/a/v1", "give the address without /v1"},
		{"gpu1:8000?model=a", "query or fragment"},
		{"gpu1:8000/#top", "query or fragment"},
		{"http://user:secret@gpu1:8000", "api_key"},
		{"http://secret@gpu1:8000", "api_key"},
		{"secret@gpu1:8000", "api_key"},
	} {
		u, err := ParseURL(c.address)
		if err == nil {
			t.Errorf("ParseURL(%q) = %s, want an error", c.address, u)
			continue
		}
		if !strings.Contains(err.Error(), c.says) {
			t.Errorf("ParseURL(%q): %v, want it to say %q", c.address, err, c.says)
		}
	}
}

// An address that is refused may hold a key, in any of its parts, and the error
// goes to the log.
func TestT10_ParseURLKeepsSecrets(t *testing.T) {
	for _, address := range []string{
		"http://user:hunter2@gpu1:8000",
		"http://hunter2@gpu1:8000",
		"http://hunter2:@gpu1:8000",
		"http://gpu1:8000?api_key=hunter2",
		"http://gpu1:8000/v1?api_key=hunter2",
		"http://gpu1:8000/#hunter2",
		"http://user:hunter2@gpu 1:8000",
		"ftp://user:hunter2@gpu1",
		"http://gpu1:8000/hunter2/v1",
		"http://user:hunter2@gpu1:70000",
	} {
		if _, err := ParseURL(address); err == nil {
			t.Errorf("%q was taken", address)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error gives the secret away: %v", err)
		}
	}
}

func FuzzParseURL(f *testing.F) {
	for _, seed := range []string{"gpu1:8000", "https://[::1]:1/a/", "http://a@b:1", "x:0", "//", "a/v1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, address string) {
		u, err := ParseURL(address)
		if err != nil {
			return
		}
		if u.Host == "" || u.Port() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			t.Errorf("%q became %#v", address, u)
		}
		again, err := ParseURL(u.String())
		if err != nil || again.String() != u.String() {
			t.Errorf("%q became %s, which became %v, %v", address, u, again, err)
		}
	})
}
