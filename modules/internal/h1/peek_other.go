//go:build !unix

package h1

import "syscall"

// idleByPeek returns nil: connections cannot be peeked at here.
func idleByPeek(syscall.Conn) func() bool { return nil }
