package sim

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// apiError is an error answer in vLLM's shape.
type apiError struct {
	status  int
	kind    string // error.type
	param   string // error.param; empty for null
	message string
}

// The body of an apiError. The code is the status as a number.
type errorBody struct {
	Error errorDetail `json:"error"`
}

type errorDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func (e *apiError) body() errorBody {
	d := errorDetail{Message: e.message, Type: e.kind, Code: e.status}
	if e.param != "" {
		d.Param = &e.param
	}
	return errorBody{d}
}

// anthropicBody is the body of an error of /v1/messages.
type anthropicBody struct {
	Type  string `json:"type"`
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
}

func (e *apiError) anthropic() anthropicBody {
	b := anthropicBody{Type: "error"}
	b.Error.Type, b.Error.Message = e.kind, e.message
	return b
}

// Answers that depend on nothing in the request.
var (
	errQueueFull = &apiError{
		http.StatusServiceUnavailable, "Service Unavailable", "",
		"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
	}
	errShutdown  = &apiError{http.StatusInternalServerError, "InternalServerError", "", "cannot schedule new futures after shutdown"}
	errDead      = &apiError{http.StatusInternalServerError, "InternalServerError", "", "EngineCore encountered an issue. See stack trace (above) for the root cause."}
	errMediaType = &apiError{http.StatusBadRequest, "Bad Request", "", "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"}
)

// badRequest is an error about one parameter, found after validation.
func badRequest(param, value, format string, args ...any) *apiError {
	message := fmt.Sprintf(format, args...)
	if value != "" {
		message += fmt.Sprintf(" (parameter=%s, value=%s)", param, value)
	}
	return &apiError{http.StatusBadRequest, "BadRequestError", param, message}
}

// unknownModel is the answer for a model that is not served. Generation
// endpoints list what is, pooling ones do not.
func unknownModel(name string, aliases []string) *apiError {
	e := &apiError{status: http.StatusNotFound, kind: "NotFoundError", message: "The model `" + name + "` does not exist."}
	if aliases != nil {
		e.param = "model"
		e.message += " Valid aliases: " + strings.Join(aliases, ", ") + "."
	}
	return e
}

// statusError is the answer of the error fault.
func statusError(status int) *apiError {
	text := http.StatusText(status)
	switch {
	case status == http.StatusServiceUnavailable:
		return errQueueFull
	case status == http.StatusTooManyRequests:
		return &apiError{status, "RateLimitError", "", "Too many requests"}
	case status >= http.StatusInternalServerError:
		return &apiError{status, "InternalServerError", "", text}
	default:
		return &apiError{status, strings.ReplaceAll(text, " ", "") + "Error", "", text}
	}
}

// pyFloat writes a number as Python prints a float.
func pyFloat(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".eIN") {
		s += ".0"
	}
	return s
}

// invalid is one validation error, as pydantic reports it.
type invalid struct{ kind, loc, msg, input, cause string }

// validationError is the answer for one or more validation errors.
func validationError(list []invalid) *apiError {
	var b strings.Builder
	plural := "s"
	if len(list) == 1 {
		plural = ""
	}
	fmt.Fprintf(&b, "%d validation error%s:", len(list), plural)
	for _, v := range list {
		fmt.Fprintf(&b, "\n  {'type': '%s', 'loc': '%s', 'msg': '%s', 'input': '%s'", v.kind, v.loc, v.msg, v.input)
		if v.cause != "" {
			fmt.Fprintf(&b, ", 'ctx': {'error': '%s'}", v.cause)
		}
		b.WriteString("}")
	}
	return &apiError{http.StatusBadRequest, "Bad Request", list[0].loc, b.String()}
}
