// Package e2e tests the gateway before real engines: two vLLM with a tiny
// Llama, a vLLM with an embedding model, a llama.cpp server with SmolLM2, and
// a simulated engine to compare with. It holds tests only, behind the build
// tag engines, since they install and start what the other tests do without:
//
//	go test -tags engines -count=1 -timeout 30m ./engines/e2e
package e2e
