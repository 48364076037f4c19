//go:build unix

package h1

import "syscall"

// idleByPeek returns a function that tells an idle connection by looking at what
// it has received, without waiting and without taking it.
func idleByPeek(sc syscall.Conn) func() bool {
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	var idle bool
	var b [1]byte
	look := func(fd uintptr) bool {
		var err error
		for {
			// Go's sockets do not block. No bytes and no error is the end of the
			// stream.
			_, _, err = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
			if err != syscall.EINTR {
				break
			}
		}
		idle = err == syscall.EAGAIN
		return true // there is nothing to wait for
	}
	return func() bool {
		idle = false
		return raw.Read(look) == nil && idle
	}
}
