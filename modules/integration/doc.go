// Package integration tests the gateway as its users meet it: real Caddy,
// configured by Caddyfiles, before engines that the tests control. Caddy is one
// per process, so no test here runs in parallel with another.
package integration
