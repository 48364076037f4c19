package llmcmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/llmgw"
)

func registerOperator() {
	operator := func(name, usage, short string, flags func(*cobra.Command), args cobra.PositionalArgs, run func(*client, *cobra.Command, []string) error) {
		caddycmd.RegisterCommand(caddycmd.Command{
			Name: name, Usage: usage, Short: short,
			CobraFunc: func(c *cobra.Command) {
				c.Args = args
				c.Flags().String("address", "", "Address of the running gateway's admin API (default localhost:2019)")
				c.Flags().Bool("json", false, "Print the API's JSON")
				flags(c)
				c.RunE = func(c *cobra.Command, args []string) error {
					address, err := c.Flags().GetString("address")
					if err != nil {
						return err
					}
					if strings.Contains(address, "://") {
						return fmt.Errorf("--address %s: want host:port, or unix//path", address)
					}
					if address, err = caddycmd.DetermineAdminAPIAddress(address, nil, "", ""); err != nil {
						return err
					}
					raw, err := c.Flags().GetBool("json")
					if err != nil {
						return err
					}
					c.SilenceUsage = true
					return run(&client{address: address, raw: raw, out: c.OutOrStdout()}, c, args)
				}
			},
		})
	}
	none := func(*cobra.Command) {}
	operator("replicas", "[--address <admin>] [--json]", "Lists the replicas of a running gateway", none, cobra.NoArgs,
		func(k *client, _ *cobra.Command, _ []string) error { return k.replicas() })
	operator("drain", "<replica> [--address <admin>] [--json]", "Gives a replica no new work", none, oneReplica,
		func(k *client, _ *cobra.Command, args []string) error { return k.drain("drain", args[0]) })
	operator("undrain", "<replica> [--address <admin>] [--json]", "Gives a replica work again", none, oneReplica,
		func(k *client, _ *cobra.Command, args []string) error { return k.drain("undrain", args[0]) })
	operator("queue", "[--address <admin>] [--json]", "Lists what waits for its turn in a running gateway", none, cobra.NoArgs,
		func(k *client, _ *cobra.Command, _ []string) error { return k.queue() })
	operator("explain", "<model> | --file <request.json> [--band <band>] [--profile <profile>] [--session <id>] [--tenant <name>] [--address <admin>] [--json]",
		"Says when a request would go, and where, and why", func(c *cobra.Command) {
			c.Flags().String("band", "", "Band, instead of the default one")
			c.Flags().String("file", "", "File with a request body, - for standard input")
			c.Flags().String("profile", "", "Routing profile, instead of the model's")
			c.Flags().String("session", "", "Session id, as x-session-id would hold it")
			c.Flags().String("tenant", "", "Whose turn it is in the queue")
		}, cobra.MaximumNArgs(1), (*client).explain)
}

// oneReplica wants the name of one replica.
func oneReplica(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return errors.New("give one replica's id: `llmgw replicas` lists them")
	}
	return nil
}

// client asks a running gateway's admin API.
type client struct {
	address string
	raw     bool
	out     io.Writer
}

// call does one request and decodes the answer into v, unless the user wants
// it as it is.
func (k *client) call(method, path string, body []byte, v any) error {
	header := http.Header{}
	if body != nil {
		header.Set("Content-Type", "application/json")
	}
	res, err := caddycmd.AdminAPIRequest(k.address, method, path, header, bytes.NewReader(body))
	if err != nil {
		return k.failed(err)
	}
	defer res.Body.Close()
	if k.raw {
		_, err := io.Copy(k.out, res.Body)
		return err
	}
	return json.NewDecoder(res.Body).Decode(v)
}

// failed says in the user's words what Caddy has made one text of: nobody
// answered, or the gateway did with an error.
func (k *client) failed(err error) error {
	text := err.Error()
	if cause, ok := strings.CutPrefix(text, "performing request: "); ok {
		if _, dialled, ok := strings.Cut(cause, `": `); ok { // behind the URL
			cause = dialled
		}
		return fmt.Errorf("%s: is llmgw running? --address names another admin endpoint; `llmgw demo` prints its own", cause)
	}
	if _, answer, ok := strings.Cut(text, ": HTTP "); ok {
		_, body, _ := strings.Cut(answer, ": ")
		var said struct {
			Error string `json:"error"`
		}
		if json.Unmarshal([]byte(body), &said) == nil && said.Error != "" {
			return errors.New(strings.ReplaceAll(said.Error, "GET /llmgw/replicas", "`llmgw replicas`"))
		}
	}
	return err
}

func (k *client) replicas() error {
	var list []llmgw.ReplicaStatus
	if err := k.call(http.MethodGet, "/llmgw/replicas", nil, &list); err != nil || k.raw {
		return err
	}
	w := tabwriter.NewWriter(k.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "REPLICA\tSTATE\tPOOL\tMODELS\tINFLIGHT\tRUNNING\tWAITING\tKV\tMETRICS\tREASON")
	for _, r := range list {
		why := r.Reason
		if !strings.Contains(why, r.MetricsError) {
			why = strings.TrimSpace(why + " " + r.MetricsError)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", r.Replica, r.State, strings.Join(r.Pools, ","),
			strings.Join(r.Models, ","), r.Inflight, text(r.Running, 0), text(r.Waiting, 0), text(r.KVUsage, 2), r.Metrics,
			why)
	}
	return w.Flush()
}

// text writes a number that may be unknown.
func text(v *float64, decimals int) string {
	if v == nil {
		return "?"
	}
	return strconv.FormatFloat(*v, 'f', decimals, 64)
}

func (k *client) drain(verb, replica string) error {
	// Its address will do as well as its id, which has no http:// in front.
	if u, err := fleet.ParseURL(replica); err == nil && strings.Contains(replica, "://") {
		replica = strings.TrimPrefix(u.String(), "http://")
	}
	body, err := json.Marshal(map[string]string{"replica": replica})
	if err != nil {
		return err
	}
	var s llmgw.ReplicaStatus
	if err := k.call(http.MethodPost, "/llmgw/replicas/"+verb, body, &s); err != nil || k.raw {
		return err
	}
	fmt.Fprintf(k.out, "%s is %s, with %d requests in flight\n", s.Replica, s.State, s.Inflight)
	return nil
}
