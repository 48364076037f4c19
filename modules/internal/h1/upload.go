package h1

import (
	"io"
	"net"
	"time"
)

// upload sends a large body beside the wait for the answer, which may come
// before the body is through.
type upload struct {
	nc   net.Conn
	done chan struct{} // closed when the body was closed
	// The rest belongs to the upload's goroutine until done is closed.
	left      int64
	err       error // why the body is not through
	socketErr error // err, if it came from the connection
}

func startUpload(nc net.Conn, body io.ReadCloser, size int64) *upload {
	u := &upload{nc: nc, done: make(chan struct{}), left: size}
	go u.run(body)
	return u
}

func (u *upload) run(body io.ReadCloser) {
	_, u.err = io.Copy(u, body)
	body.Close()
	if u.err == nil && u.left > 0 {
		u.err = errShortBody
	}
	close(u.done)
	if u.err != nil && u.socketErr == nil {
		// The server waits for the rest and the caller for the server.
		u.nc.Close()
	}
}

// Write implements io.Writer for io.Copy.
func (u *upload) Write(p []byte) (int, error) {
	if int64(len(p)) > u.left {
		return 0, errLongBody
	}
	n, err := u.nc.Write(p)
	u.left -= int64(n)
	u.socketErr = err
	return n, err
}

// abort stops a write under way and lets every further one fail.
func (u *upload) abort() {
	// It fails only on a closed connection.
	_ = u.nc.SetWriteDeadline(time.Unix(1, 0))
}

// whole reports whether the body is known to be through.
func (u *upload) whole() bool {
	if u == nil {
		return true
	}
	select {
	case <-u.done:
		return u.err == nil
	default:
		return false
	}
}

// failure returns the error of the caller's body, if there was one.
func (u *upload) failure() error {
	if u == nil {
		return nil
	}
	select {
	case <-u.done:
		if u.socketErr == nil {
			return u.err
		}
	default:
	}
	return nil
}
