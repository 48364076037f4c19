package main

import (
	"fmt"
	"strings"
	"time"
)

// Limits of the gateway under test: short enough for a hanging engine to be
// felt in a run of two minutes.
const (
	firstToken = 5 * time.Second
	idleToken  = 4 * time.Second
	total      = 20 * time.Second
	bodyLimit  = 1 << 20
)

// site writes the gateway's config.
type site struct {
	listen, admin string
	engines       []string
}

// variant is what a reload changes.
type variant struct {
	version int    // a header, of which nothing depends
	without string // an engine that is left out
	extra   bool   // one more model
	weights bool   // other weights, another profile
	fault   string // a line that cannot be loaded
	listen  string // another address, which is taken
}

func (s *site) caddyfile(v variant) string {
	var all []string
	for _, e := range s.engines {
		if e != v.without {
			all = append(all, e)
		}
	}
	list := strings.Join(all, " ")
	fast, slow := strings.Join(all[:len(all)-2], " "), strings.Join(all[len(all)-2:], " ")
	weight, profile, extra, listen := 100, "batch", "", s.listen
	if v.weights {
		weight, profile = 50, "long-context"
	}
	if v.extra {
		extra = "model extra {\n\t\t\tendpoint " + list + " {\n\t\t\t\tserved_model sim\n\t\t\t}\n\t\t}"
	}
	if v.listen != "" {
		listen = v.listen
	}
	return fmt.Sprintf(`{
	admin %s
	persist_config off
	auto_https off
	grace_period 30s
	log {
		output stderr
		level INFO
		exclude http.log.access
	}
	llmgw {
		scrape_interval 500ms
		reliability {
			first_token_timeout %v
			idle_token_timeout %v
			total_timeout %v
			cooldown 4s
		}
		model chat {
			alias gpt-4o-mini
			endpoint %s {
				served_model sim
			}
		}
		model pools {
			routing %s
			endpoint %s {
				pool fast
				priority 200
				served_model sim
			}
			endpoint %s {
				pool slow
				weight %d
				served_model sim
			}
		}
		%s
		endpoint %s
		%s
	}
}
http://%s {
	bind 127.0.0.1
	header X-Version %d
	log {
		output stdout
		format json
	}
	llm {
		body_limit %d
	}
}
`, s.admin, firstToken, idleToken, total, list, profile, fast, slow, weight, extra, list, v.fault, listen, v.version, bodyLimit)
}
