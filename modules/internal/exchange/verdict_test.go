package exchange

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

// TestAnswerThatDoesNotCome: a stream that does not begin is a replica's failure.
// Any other answer may just be long, unless the replica says nothing to anybody.
func TestAnswerThatDoesNotCome(t *testing.T) {
	for _, c := range []struct {
		name, body     string
		others, blamed bool
	}{
		{"a stream", strings.Replace(chatBody, `{`, `{"stream":true,`, 1), true, true},
		{"an answer, and others come", chatBody, true, false},
		{"an answer, and no other comes", chatBody, false, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, "gpu1:8000")
			r := w.fleet.Replicas()[0]
			for range 3 {
				x := w.ask(t, c.body)
				mustPick(t, x)
				time.Sleep(x.serving.Reliability.FirstToken)
				if c.others {
					r.Progressed(time.Now())
				}
				if x.GaveUp(errFirstToken) {
					t.Error("it is sent again")
				}
				x.End()
			}
			if blamed := r.State() != schedule.Ready; blamed != c.blamed {
				t.Errorf("%s: blamed %t", c.name, blamed)
			}
		})
	}
}

// TestClientErrorsAreNoProgress: a front may refuse what is wrong while its engine
// hangs.
func TestClientErrorsAreNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "gpu1:8000")
		x := w.ask(t, chatBody)
		r := mustPick(t, x).Replica
		time.Sleep(time.Minute)
		x.Succeeded()
		slot, _ := r.Take(-1, 1)
		defer slot.Release()
		if !slot.Quiet(time.Minute) {
			t.Error("an answer that may be the client's fault counts")
		}
		var w2 Watch // what every answer goes through
		x.Watch(&w2, time.Now(), func(error) {})
		defer w2.Stop()
		w2.First(time.Now())
		w2.Reading()
		if slot.Quiet(time.Minute) {
			t.Error("an answer does not count")
		}
		x.End()
	})
}

func TestQueryNamesThatMayHoldASecret(t *testing.T) {
	for name, want := range map[string]bool{
		"key": true, "api_key": true, "API-KEY": true, "access_token": true, "Authorization": true, "password": true, "client_secret": true,
		"model": false, "intent": false, "language": false,
	} {
		if namesSecret(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}
