// Package openai knows the wire format of OpenAI-compatible engines, and nothing about routing.
//
// It has four parts, each of which looks at bytes without ever re-encoding them:
//
//   - Scan and ScanMultipart validate a request body in one pass and report where the fields that
//     the gateway routes by lie in it; Edits and Splice replace just those bytes.
//   - Tap watches an answer in Server-Sent Events and Unary one in JSON, while their bytes pass by.
//   - Usage is what an engine says that a request has cost.
//   - Error is the one shape of every error that a client sees; Normalize brings an engine's own
//     errors into it.
//
// Where llmgw and an engine could read the same bytes in two ways (a key written twice, a form
// field with two names), the request is refused: a key or a model that one of them checked and the
// other never saw is a hole in every permission check above this package.
package openai
