package llmgw

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestCloseAfter: a request that never ends does not keep a process from ending,
// but does keep its connection over a reload.
func TestCloseAfter(t *testing.T) {
	for _, exits := range []bool{true, false} {
		begun, ended := make(chan struct{}), make(chan struct{})
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(begun)
			<-r.Context().Done()
			close(ended)
		}))
		closeAfter(s.Config, time.Millisecond, func() bool { return exits })
		s.Start()
		go func() {
			if res, err := http.Get(s.URL); err == nil {
				res.Body.Close()
			}
		}()
		<-begun
		ctx, cancel := context.WithTimeout(t.Context(), map[bool]time.Duration{true: time.Minute, false: 100 * time.Millisecond}[exits])
		err := s.Config.Shutdown(ctx)
		cancel()
		if exits != (err == nil) || !exits && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("exits %t: %v", exits, err)
		}
		s.CloseClientConnections()
		<-ended
	}
}
