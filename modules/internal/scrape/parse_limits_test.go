package scrape

import (
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"
)

const good = "vllm:num_requests_waiting 3\nvllm:num_requests_running 4\nvllm:kv_cache_usage_perc 0.5\n"

func TestMalformedWantedLineIsAnError(t *testing.T) {
	for _, line := range []string{
		"vllm:num_requests_waiting",
		"vllm:num_requests_waiting ",
		"vllm:num_requests_waiting three",
		`vllm:num_requests_waiting{engine="0" 3`,
		`vllm:num_requests_waiting{engine="0"}`,
		`vllm:num_requests_waiting{engine=0} 3`,
		`vllm:num_requests_waiting{engine="0} 3`,
		"vllm:num_requests_waiting 3 4 5",
		`vllm:cache_config_info{block_size="16"`,
	} {
		_, err := Parse(strings.NewReader("up 1\n# HELP up It is.\n"+line+"\n"+good), "", nil, nil)
		if err == nil {
			t.Errorf("%q was taken", line)
			continue
		}
		if !strings.Contains(err.Error(), "the metrics page is malformed in line 3: ") {
			t.Errorf("%q: %v, want it to name line 3 of the page", line, err)
		}
	}
}

func TestMalformedOtherLinesAreIgnored(t *testing.T) {
	for _, line := range []string{
		"vllm:other{ 3",
		"vllm:other three",
		"{} {} {}",
		"<html>",
		"# TYPE vllm:num_requests_waiting histogram",
		"# HELP",
		"#vllm:num_requests_waiting nonsense",
		"vllm:num_requests_waiting_created nonsense",
		"\xff\xfe\x00",
		strings.Repeat("x", 500<<10),
	} {
		s, err := Parse(strings.NewReader(line+"\n"+good), "", nil, nil)
		if err != nil {
			t.Errorf("%.40q: %v", line, err)
			continue
		}
		expectStats(t, s, 3, 4, 0.5)
	}
}

// endless is a page that never ends.
type endless struct {
	text string
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], e.text)
	}
	e.read += n
	return n, nil
}

func TestPagesBeyondTheLimits(t *testing.T) {
	for _, c := range []struct{ name, text, says string }{
		{"a page without an end", "# HELP up " + strings.Repeat("very ", 100) + "\n", "larger than 8388608 bytes"},
		{"a line without an end", "x", "line of more than 1048576 bytes"},
		{"wanted series without an end", good, "more than 1048576 bytes in the series that are read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &endless{text: strings.Repeat(c.text, 4096)}
			_, err := Parse(e, "", nil, nil)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want it to say %q", err, c.says)
			}
			if e.read > maxPage+1 {
				t.Errorf("read %d bytes of it", e.read)
			}
		})
	}
	// The largest page that is not too large.
	fill := strings.Repeat(strings.Repeat("#", 1023)+"\n", maxPage>>10)
	s, err := Parse(strings.NewReader(good+fill[len(good):]), "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	expectStats(t, s, 3, 4, 0.5)
}

func TestPageThatBreaksOff(t *testing.T) {
	broken := errors.New("connection reset")
	_, err := Parse(io.MultiReader(strings.NewReader(good), iotest.ErrReader(broken)), "", nil, nil)
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want it to wrap the reader's", err)
	}
	s, err := Parse(iotest.OneByteReader(strings.NewReader(good)), "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	expectStats(t, s, 3, 4, 0.5)
}

// FuzzParse: whatever an engine sends, Parse does not panic and keeps to what
// Stats promises.
func FuzzParse(f *testing.F) {
	for _, name := range []string{
		"vllm_old_names.prom", "vllm_new_names_dp2.prom", "vllm_queueing.prom",
		"sglang_dp.prom", "llamacpp_short.prom", "llamacpp_queueing.prom",
	} {
		f.Add(page1(f, name), "", "org/Tiny-1B")
	}
	f.Add(good, "vllm", "")
	f.Add("vllm:num_requests_waiting{engine=\"0\",engine=\"0\"} 1\n", "vllm", "m")
	f.Add("vllm:kv_cache_usage_perc{model_name=\"a\\nb\"} -0\n", "", "a\nb")
	f.Add("vllm:cache_config_info{block_size=\"9223372036854775807\",num_gpu_blocks=\"9223372036854775807\"} 1\n", "", "")
	f.Fuzz(func(t *testing.T, text, engine, model string) {
		var models []string
		if model != "" {
			models = []string{model}
		}
		s, err := Parse(strings.NewReader(text), engine, nil, models)
		if err != nil {
			if s != nil {
				t.Error("statistics beside an error")
			}
			return
		}
		for _, v := range []float64{float64(s.Waiting), float64(s.Running), float64(s.KVUsage)} {
			if v < 0 || math.IsInf(v, 0) {
				t.Errorf("value %v", v)
			}
		}
		if s.KVUsage > 1 {
			t.Errorf("KV usage %v", s.KVUsage)
		}
		if (s.BlockSize == 0) != (s.Blocks == 0) || s.BlockSize < 0 || s.Blocks < 0 {
			t.Errorf("%d blocks of %d", s.Blocks, s.BlockSize)
		}
		if !s.At.IsZero() || s.Failed != "" || s.NoMetrics {
			t.Errorf("stats %+v", *s)
		}
	})
}
