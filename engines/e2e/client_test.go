//go:build engines

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// patience is how long anything but the start of an engine may take.
const patience = time.Minute

var client = &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: 5 * time.Minute}

// object is a JSON object.
type object = map[string]any

// response is one that was read to its end.
type response struct {
	status int
	header http.Header
	body   []byte
}

// do sends body as JSON, or as it is if it is a string.
func do(ctx context.Context, url string, body any, headers ...string) (*http.Response, error) {
	text, ok := body.(string)
	if !ok {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		text = string(b)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return client.Do(req)
}

// post sends a request and reads all of its answer.
func post(t *testing.T, url string, body any, headers ...string) response {
	t.Helper()
	res, err := do(t.Context(), url, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("POST %s: read the answer: %v after\n%s", url, err, b)
	}
	return response{res.StatusCode, res.Header, b}
}

// posted is post for requests that must succeed.
func posted(t *testing.T, url string, body any, headers ...string) response {
	t.Helper()
	res := post(t, url, body, headers...)
	if res.status != http.StatusOK {
		t.Fatalf("POST %s: status %d: %s", url, res.status, res.body)
	}
	return res
}

// into decodes an answer.
func (r response) into(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal(r.body, v); err != nil {
		t.Fatalf("decode %s: %v", r.body, err)
	}
}

// get reads a page.
func get(url string) ([]byte, error) {
	res, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d: %s", url, res.StatusCode, b)
	}
	return b, err
}

// serves says nil if a page is there.
func serves(url string) error {
	_, err := get(url)
	return err
}

// metric sums the series of a metrics page that have all the labels, each as
// name="value". A metric that is not there is 0: counters appear when they
// first count.
func metric(url, name string, labels ...string) (sum float64, err error) {
	page, err := get(url + "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(page) {
		series, value, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
		has := series == name || strings.HasPrefix(series, name+"{")
		for _, l := range labels {
			has = has && strings.Contains(series, l)
		}
		if !ok || !has {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s at %s: %w", name, url, err)
		}
		sum += v
	}
	return sum, nil
}

// chat is the body of a chat request that always gets the same answer from
// the same engine.
func chat(model, prompt string, maxTokens int, more object) object {
	body := object{
		"model": model, "messages": []object{{"role": "user", "content": prompt}},
		"max_tokens": maxTokens, "temperature": 0, "seed": 1,
	}
	for k, v := range more {
		body[k] = v
	}
	return body
}

// events splits a stream of server-sent events; each keeps its empty line.
func events(stream string) []string {
	list := strings.SplitAfter(stream, "\n\n")
	if n := len(list); list[n-1] == "" {
		list = list[:n-1]
	}
	return list
}

// usage is in tokens, by the names of OpenAI's APIs and of Anthropic's.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Input      int `json:"input_tokens"`
	Output     int `json:"output_tokens"`
	CacheRead  int `json:"cache_read_input_tokens"` // Anthropic's input_tokens are without these
	Details    *struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// usageOf decodes the usage object of an event or an answer; nil if it has
// none.
func usageOf(text string) *usage {
	_, data, isEvent := strings.Cut(text, "data: ")
	if !isEvent {
		data = text
	}
	type holder struct{ Usage *usage }
	var v struct {
		holder
		Response, Message holder
	}
	if json.Unmarshal([]byte(data), &v) != nil {
		return nil
	}
	return cmp.Or(v.Usage, v.Response.Usage, v.Message.Usage)
}

// totals returns the prompt and output tokens that a stream or an answer tells
// of, over all its events: Anthropic's tells of the prompt in the first and of
// the output in the last. It is nil if there is no usage.
func totals(text string) *usage {
	var sum *usage
	for _, e := range events(text) {
		u := usageOf(e)
		if u == nil {
			continue
		}
		if sum == nil {
			sum = new(usage)
		}
		sum.Prompt = max(sum.Prompt, u.Prompt+u.Input+u.CacheRead)
		sum.Completion = max(sum.Completion, u.Completion+u.Output)
	}
	return sum
}
