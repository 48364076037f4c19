package openai

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"strings"
)

const (
	maxParts       = 1000
	maxPartHeaders = 16 << 10 // bytes of one part's header
)

// ScanMultipart is Scan for a multipart/form-data body (audio transcriptions): it reads the form
// fields model, stream, user and prompt, and the spans are those of the raw values. File parts are
// only counted, as MediaBytes. It is strict where form parsers differ (RFC 7578, RFC 2046): the
// body begins with the boundary and ends with the closing one, lines end in CRLF, and a field's
// name is written plainly. At most 1000 parts, with 16 KiB of header each.
func ScanMultipart(body []byte, contentType string) (Fields, error) {
	f := Fields{multipart: true}
	delimiter, err := formDelimiter(contentType)
	if err != nil {
		return f, err
	}
	if !bytes.HasPrefix(body, delimiter[2:]) {
		return f, badForm(0, "it does not begin with the boundary")
	}
	seen := 0
	at := len(delimiter) - 2 // behind a delimiter
	for part := 0; ; part++ {
		if bytes.HasPrefix(body[at:], []byte("--")) {
			if rest := body[at+2:]; len(bytes.Trim(rest, "\r\n")) > 0 {
				return f, badForm(at+2, "data after the closing boundary")
			}
			break
		}
		if !bytes.HasPrefix(body[at:], []byte("\r\n")) {
			return f, badForm(at, "the boundary is not followed by a line end")
		}
		if part == maxParts {
			return f, badForm(at, fmt.Sprintf("more than %d parts", maxParts))
		}
		at += 2
		header, ok := partHeader(body[at:])
		if !ok {
			return f, badForm(at, fmt.Sprintf("a part's header is cut off or longer than %d bytes", maxPartHeaders))
		}
		name, file, ok := partName(header)
		if !ok {
			return f, badForm(at, "a part needs one plain Content-Disposition: form-data with a name")
		}
		start := at + len(header) + 2
		length := bytes.Index(body[start:], delimiter)
		if length < 0 {
			return f, badForm(start, "the closing boundary is missing")
		}
		end := start + length
		at = end + len(delimiter)
		if err := f.addPart(body, name, file, Span{start, end}, &seen); err != nil {
			return f, err
		}
	}
	if f.ModelSpan.Empty() {
		return f, missingModel()
	}
	return f, nil
}

// formDelimiter returns CRLF, two dashes and the boundary.
func formDelimiter(contentType string) ([]byte, error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" {
		return nil, badBody("the Content-Type must be multipart/form-data with a boundary")
	}
	if b := params["boundary"]; b == "" || len(b) > 70 || strings.TrimRight(b, " ") != b {
		return nil, badBody("the Content-Type needs a boundary of 1 to 70 characters")
	}
	// Some engines decode the fields by this parameter, and would read another name than we do.
	if c := strings.ToLower(params["charset"]); c != "" && c != "utf-8" && c != "utf8" {
		return nil, badBody("the form's charset must be utf-8")
	}
	return []byte("\r\n--" + params["boundary"]), nil
}

// partHeader returns the header lines at the start of b, each with its CRLF, without the blank line.
func partHeader(b []byte) ([]byte, bool) {
	window := b[:min(len(b), maxPartHeaders+4)]
	end := bytes.Index(window, []byte("\r\n\r\n"))
	if end < 0 {
		return nil, false
	}
	return b[:end+2], true
}

// partName reads a part's header. It refuses what form parsers are known to read in more than one
// way: folded lines, two dispositions, extended names (name*=) and backslashes in a field's name.
func partName(header []byte) (name string, file, ok bool) {
	found := false
	for line := range strings.SplitSeq(strings.TrimSuffix(string(header), "\r\n"), "\r\n") {
		key, value, colon := strings.Cut(line, ":")
		if !colon || key == "" || strings.ContainsAny(key, " \t") || strings.ContainsAny(line, "\r\n\x00") {
			return "", false, false
		}
		if !strings.EqualFold(key, "Content-Disposition") {
			continue
		}
		kind, params, err := mime.ParseMediaType(strings.TrimSpace(value))
		if found || err != nil || kind != "form-data" {
			return "", false, false
		}
		found = true
		lower := strings.ToLower(value)
		file = strings.Contains(lower, "filename")
		name = params["name"]
		plain := !strings.Contains(strings.ReplaceAll(lower, "filename*", ""), "name*")
		if name == "" || !plain || !file && strings.Contains(value, `\`) {
			return "", false, false
		}
	}
	return name, file, found
}

func (f *Fields) addPart(body []byte, name string, file bool, s Span, seen *int) error {
	key := 0
	switch name {
	case "model":
		key = keyModel
	case "stream":
		key = keyStream
	case "user":
		key = keyUser
	case "prompt":
		key = keyPrompt
	}
	if file && key != 0 {
		return NewError(http.StatusBadRequest, name, "", name+" must be a form field, not a file")
	}
	if key&*seen&^keyPrompt != 0 {
		return duplicate(name)
	}
	*seen |= key
	value := s.Of(body)
	switch {
	case key == keyModel:
		f.ModelSpan = s
		return f.setModelText(string(value[:min(len(value), maxModel+1)]))
	case key == keyStream:
		// What the engines' form validators take for a boolean.
		switch strings.ToLower(string(value[:min(len(value), 8)])) {
		case "true", "1", "yes", "on", "t", "y":
			f.Stream = true
		case "false", "0", "no", "off", "f", "n", "":
		default:
			return NewError(http.StatusBadRequest, "stream", "", "stream must be true or false")
		}
	case key == keyUser:
		f.setUserText(string(value))
	case key == keyPrompt:
		f.PromptBytes += len(value)
		if f.prompts < len(f.prompt) {
			f.prompt[f.prompts] = s
			f.prompts++
		}
	case file:
		f.MediaBytes += len(value)
	}
	return nil
}

func badForm(at int, problem string) *Error {
	return badBody(fmt.Sprintf("the multipart form is malformed at byte %d: %s", at, problem))
}
