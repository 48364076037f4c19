package llmcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/llmgw/llmgw/modules/internal/admit"
	"github.com/llmgw/llmgw/modules/llmgw"
)

func (k *client) explain(c *cobra.Command, args []string) error {
	flag := func(name string) string { return c.Flag(name).Value.String() }
	body, err := explainBody(flag("file"), args)
	if err != nil {
		return err
	}
	q := url.Values{}
	for _, name := range []string{"profile", "session", "band", "tenant"} {
		if v := flag(name); v != "" {
			q.Set(name, v)
		}
	}
	var e llmgw.Explanation
	if err := k.call(http.MethodPost, "/llmgw/explain?"+q.Encode(), body, &e); err != nil || k.raw {
		return err
	}
	return k.printExplanation(e)
}

func explainBody(file string, args []string) ([]byte, error) {
	switch {
	case file != "" && len(args) > 0, file == "" && len(args) == 0:
		return nil, errors.New("give either a model or --file")
	case file == "-":
		return io.ReadAll(os.Stdin)
	case file != "":
		return os.ReadFile(file)
	}
	return json.Marshal(map[string]string{"model": args[0]})
}

func (k *client) printExplanation(e llmgw.Explanation) error {
	fmt.Fprintf(k.out, "model %s, profile %s, picker %s\n", e.Model, e.Profile, e.Picker)
	k.printAdmission(e.Admission)
	if e.Pick == "" {
		fmt.Fprintln(k.out, "no replica: every candidate was dropped")
	} else {
		spilled := ""
		if e.Spilled {
			spilled = ", spilled over from a pool of higher priority"
		}
		fmt.Fprintf(k.out, "pool %s (saturation %.2f%s)\npick %s (%s)\n\n", e.Pool, e.Saturation, spilled, e.Pick, e.Cache)
	}
	candidates := slices.Clone(e.Candidates)
	slices.SortStableFunc(candidates, func(a, b llmgw.Verdict) int {
		switch {
		case a.Total > b.Total:
			return -1
		case a.Total < b.Total:
			return 1
		}
		return strings.Compare(a.Rejected, b.Rejected)
	})
	w := tabwriter.NewWriter(k.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "REPLICA\tPOOL\tCACHED\tTOTAL\tSCORES")
	for _, c := range candidates {
		if c.Rejected != "" {
			fmt.Fprintf(w, "%s\t%s\t%s\t-\tdropped: %s\n", c.Replica, c.Pool, share(c.Cached), c.Rejected)
			continue
		}
		var scores []string
		for _, s := range c.Scores {
			scores = append(scores, fmt.Sprintf("%s %.2f x %g", s.Scorer, s.Value, s.Weight))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.2f\t%s\n", c.Replica, c.Pool, share(c.Cached), c.Total, strings.Join(scores, ", "))
	}
	return w.Flush()
}

// share writes a share as per cent, "-" if nobody knows it.
func share(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100**v)
}

// waits says why a request waits.
var waits = map[string]string{
	admit.WaitSaturated: "with it the replicas would be above the band's ceiling",
	admit.WaitHeadroom:  "what is free is left for higher bands",
	admit.WaitPaced:     "requests of the band went a moment ago",
	admit.WaitTokens:    "no replica has room for its tokens",
	admit.WaitFull:      "the replicas refuse more than they have",
	admit.WaitReplica:   "there is no replica to go to",
	admit.WaitTurn:      "others go first",
}

// refusals say why a request is refused.
var refusals = map[string]string{
	string(admit.ReasonTooLarge):  "it has more tokens than any replica can hold",
	string(admit.ReasonNoReplica): "there is no replica to go to",
	string(admit.ReasonDeadline):  "it would wait for longer than it may",
	string(admit.ReasonFull):      "the queue is full",
}

func (k *client) printAdmission(a llmgw.Admitted) {
	fmt.Fprintf(k.out, "band %s (ceiling %g, saturation %.2f", a.Band, a.Ceiling, a.Saturation)
	if a.FreeSlots != nil && a.Slots != nil && *a.Slots > 0 {
		fmt.Fprintf(k.out, ", %g of %g slots free", *a.FreeSlots, *a.Slots)
	}
	if a.Headroom > 0 {
		fmt.Fprintf(k.out, ", %g left for higher bands", a.Headroom)
	}
	switch {
	case a.Waits == "" && a.Refused == "":
		fmt.Fprintln(k.out, "): goes at once")
		return
	case a.Refused != "":
		fmt.Fprintf(k.out, "): refused, %s", refusals[a.Refused])
	default:
		fmt.Fprintf(k.out, "): waits, %s", waits[a.Waits])
	}
	if a.Fallback != "" {
		fmt.Fprintf(k.out, "; the fallback %s serves it then", a.Fallback)
	}
	if a.Ahead > 0 {
		fmt.Fprintf(k.out, "; %d wait in its band or above it", a.Ahead)
	}
	switch {
	case a.WaitSeconds != nil:
		fmt.Fprintf(k.out, "; about %.1f s", *a.WaitSeconds)
	case a.Refused == "" && a.Fallback == "":
		fmt.Fprint(k.out, "; for how long is not known yet")
	}
	fmt.Fprintln(k.out)
}

func (k *client) queue() error {
	var list []llmgw.Waiting
	if err := k.call(http.MethodGet, "/llmgw/queue", nil, &list); err != nil || k.raw {
		return err
	}
	if len(list) == 0 {
		fmt.Fprintln(k.out, "nothing waits")
		return nil
	}
	w := tabwriter.NewWriter(k.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MODEL\tBAND\tREQUESTS\tTOKENS\tBYTES\tOLDEST")
	for _, q := range list {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%.1fs\n", q.Model, q.Band, q.Requests, q.Tokens, q.Bytes, q.OldestSeconds)
	}
	return w.Flush()
}
