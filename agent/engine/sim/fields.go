package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// maxInvalid bounds the validation errors that one answer lists.
const maxInvalid = 16

// fields reads a JSON object by name and collects what is wrong with it. Of a
// repeated key the last one counts, as in Python. A null counts as absent.
type fields struct {
	raw  map[string]json.RawMessage
	loc  string
	errs *[]invalid
}

// parseFields reads a request body.
func parseFields(body []byte) (fields, *apiError) {
	f := fields{loc: "body", errs: new([]invalid)}
	err := json.Unmarshal(body, &f.raw)
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		at := syntax.Offset
		if at > 0 && at < int64(len(body)) {
			at-- // the offset counts the bad byte
		}
		return f, validationError([]invalid{{
			"json_invalid", "body." + strconv.FormatInt(at, 10), "JSON decode error", "<dict of 0 items>", "Expecting value",
		}})
	}
	if err != nil || f.raw == nil {
		return f, validationError([]invalid{{
			"model_attributes_type", "body", "Input should be a valid dictionary or object to extract fields from", inputOf(body), "",
		}})
	}
	return f, nil
}

// err is the answer for all that was found wrong, or nil.
func (f fields) err() *apiError {
	if len(*f.errs) == 0 {
		return nil
	}
	return validationError(*f.errs)
}

func (f fields) fail(name, kind, msg, input string) {
	if len(*f.errs) < maxInvalid {
		*f.errs = append(*f.errs, invalid{kind, f.loc + "." + name, msg, input, ""})
	}
}

// get returns the raw value of name; ok is false where it is absent or null.
func (f fields) get(name string) (json.RawMessage, bool) {
	v, ok := f.raw[name]
	return v, ok && !bytes.Equal(v, []byte("null"))
}

// require reports an absent field.
func (f fields) require(name string) {
	if _, ok := f.get(name); !ok {
		f.fail(name, "missing", "Field required", fmt.Sprintf("<dict of %d items>", len(f.raw)))
	}
}

// inputOf describes a value in an error, without the content of containers.
func inputOf(raw []byte) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return ""
	}
	switch raw[0] {
	case '"':
		var s string
		_ = json.Unmarshal(raw, &s) // raw is part of a valid document
		return s[:min(len(s), 64)]
	case '{':
		var m map[string]json.RawMessage
		_ = json.Unmarshal(raw, &m) // as above
		return fmt.Sprintf("<dict of %d items>", len(m))
	case '[':
		var l []json.RawMessage
		_ = json.Unmarshal(raw, &l) // as above
		return fmt.Sprintf("<list of %d items>", len(l))
	case 't':
		return "True"
	case 'f':
		return "False"
	case 'n':
		return "None"
	}
	return string(raw[:min(len(raw), 64)])
}

// text reads a string.
func (f fields) text(name string) string {
	raw, ok := f.get(name)
	if !ok {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		f.fail(name, "string_type", "Input should be a valid string", inputOf(raw))
	}
	return s
}

// number reads a float; like pydantic it takes a string that spells one.
func (f fields) number(name string, def float64) float64 {
	raw, ok := f.get(name)
	if !ok {
		return def
	}
	var v float64
	if json.Unmarshal(raw, &v) == nil {
		return v
	}
	if raw[0] == '"' {
		v, err := strconv.ParseFloat(strings.TrimSpace(inputOf(raw)), 64)
		if err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
			return v
		}
		f.fail(name, "float_parsing", "Input should be a valid number, unable to parse string as a number", inputOf(raw))
		return def
	}
	f.fail(name, "float_type", "Input should be a valid number", inputOf(raw))
	return def
}

// integer reads a whole number; ok is false where it is absent or wrong.
func (f fields) integer(name string) (v int, ok bool) {
	raw, ok := f.get(name)
	if !ok {
		return 0, false
	}
	if v, err := strconv.Atoi(strings.TrimSpace(string(bytes.Trim(raw, `"`)))); err == nil {
		return v, true
	}
	var num float64
	switch {
	case json.Unmarshal(raw, &num) == nil && num == math.Trunc(num) && math.Abs(num) < 1<<53:
		return int(num), true
	case raw[0] == '"':
		f.fail(name, "int_parsing", "Input should be a valid integer, unable to parse string as an integer", inputOf(raw))
	case json.Unmarshal(raw, &num) == nil:
		f.fail(name, "int_from_float", "Input should be a valid integer, got a number with a fractional part", inputOf(raw))
	default:
		f.fail(name, "int_type", "Input should be a valid integer", inputOf(raw))
	}
	return 0, false
}

// flag reads a boolean, false where it is absent.
func (f fields) flag(name string) bool {
	raw, ok := f.get(name)
	if !ok {
		return false
	}
	switch strings.ToLower(inputOf(raw)) {
	case "true", "1", "yes", "on":
		return true
	case "false", "0", "no", "off":
		return false
	}
	f.fail(name, "bool_parsing", "Input should be a valid boolean, unable to interpret input", inputOf(raw))
	return false
}

// object reads a nested object; its errors count as this one's.
func (f fields) object(name string) fields {
	o := fields{loc: f.loc + "." + name, errs: f.errs}
	if raw, ok := f.get(name); ok && json.Unmarshal(raw, &o.raw) != nil {
		f.fail(name, "model_attributes_type", "Input should be a valid dictionary or object to extract fields from", inputOf(raw))
	}
	return o
}

// list reads an array; ok is false where it is absent or wrong.
func (f fields) list(name string) (items []json.RawMessage, ok bool) {
	raw, ok := f.get(name)
	if !ok {
		return nil, false
	}
	if json.Unmarshal(raw, &items) != nil {
		f.fail(name, "list_type", "Input should be a valid list", inputOf(raw))
		return nil, false
	}
	return items, true
}

// texts reads a string or a list of strings.
func (f fields) texts(name string) []string {
	raw, ok := f.get(name)
	if !ok {
		return nil
	}
	if raw[0] == '"' {
		return []string{f.text(name)}
	}
	var list []string
	if json.Unmarshal(raw, &list) != nil {
		f.fail(name, "list_type", "Input should be a valid string or list of strings", inputOf(raw))
	}
	return list
}
