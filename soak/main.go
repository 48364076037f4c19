// Command soak holds a gateway under load while its engines fail in all the
// ways that they can, and checks that every answer is whole or says that it is
// not, and that nothing is left behind afterwards.
//
//	go run ./soak [-binary bin/llmgw] [-minutes 2] [-seed n] [-rate 60] [-most 100]
//
// One gateway and six simulated engines run as processes of their own, all on
// loopback. The seed decides which faults come when and what is asked; how both
// meet is up to the machine. It needs Linux, for /proc.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

func main() {
	binary := flag.String("binary", filepath.Join("bin", "llmgw"), "the gateway")
	minutes := flag.Float64("minutes", 2, "length of the load")
	seed := flag.Uint64("seed", 0, "of faults and requests; 0 takes one by chance")
	rate := flag.Float64("rate", 60, "requests a second")
	most := flag.Int("most", 100, "requests at the same time")
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64N(1e9) + 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &soak{
		seed: *seed, length: time.Duration(*minutes * float64(time.Minute)), rate: *rate, most: *most,
		report: newReport(), texts: newTexts(), state: &chaosState{busy: make(map[*engine]bool)},
	}
	if err := s.run(ctx, *binary); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1) //nolint:gocritic // the deferred stop only gives signals back
	}
}

// soak is one run.
type soak struct {
	seed   uint64
	length time.Duration
	rate   float64
	most   int

	dir     string
	site    *site
	gateway *gateway
	engines []*engine
	report  *report
	texts   *texts
	state   *chaosState
	base    footprint // of the gateway at rest, before the load
}

// run does all of it. The processes end with it, however it ends.
func (s *soak) run(ctx context.Context, binary string) (err error) {
	fmt.Printf("seed %d, %v, %g requests a second\n", s.seed, s.length, s.rate)
	if s.dir, err = os.MkdirTemp("", "llmgw-soak-"); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer func() {
		cancel(nil)
		if s.gateway != nil {
			<-s.gateway.done
		}
		for _, e := range s.engines {
			e.gone()
		}
		if err == nil {
			_ = os.RemoveAll(s.dir)
		} else {
			fmt.Println("logs are in", s.dir)
		}
	}()
	if err := s.start(ctx, cancel, binary); err != nil {
		return cause(ctx, err)
	}
	if err := s.load(ctx); err != nil {
		return cause(ctx, err)
	}
	fmt.Println("the load has ended and the engines are well again; waiting for the gateway to come to rest")
	broken, err := s.atRest(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	s.report.print(os.Stdout)
	broken = append(broken, s.report.violations()...)
	if len(broken) > 0 {
		return fmt.Errorf("%d things are not as they must be (seed %d):\n%w", len(broken), s.seed, errors.Join(broken...))
	}
	fmt.Println("all is well")
	return nil
}

// cause prefers the reason for which the run was ended: the rest follows from
// it.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// start runs the engines and the gateway, and notes what the gateway needs at
// rest, once it has served a little.
func (s *soak) start(ctx context.Context, cancel context.CancelCauseFunc, binary string) error {
	ports, err := freePorts(ctx, engines+2)
	if err != nil {
		return err
	}
	for _, address := range ports[:engines] {
		e := &engine{binary: binary, address: address, dir: s.dir}
		s.engines = append(s.engines, e)
		if err := e.start(ctx); err != nil {
			return err
		}
	}
	s.site = &site{listen: ports[engines], admin: ports[engines+1], engines: ports[:engines]}
	if s.gateway, err = startGateway(ctx, binary, s.dir, s.site, s.report); err != nil {
		return err
	}
	go func() {
		<-s.gateway.done
		cancel(errors.New("the gateway has ended"))
	}()
	if err := s.settle(ctx); err != nil {
		return err
	}
	if _, err := s.batch(ctx, 60); err != nil {
		return err
	}
	s.base, err = s.footprint(ctx)
	return err
}

// load runs requests and faults side by side. When it returns, the faults are
// over and all requests have ended.
func (s *soak) load(ctx context.Context) error {
	over, cancel := context.WithTimeout(ctx, s.length)
	defer cancel()
	var wg sync.WaitGroup
	var chaosErr, sampleErr error
	wg.Go(func() {
		// Without faults the load proves nothing.
		if chaosErr = s.chaos(ctx, over); chaosErr != nil {
			cancel()
		}
	})
	wg.Go(func() { sampleErr = s.sample(ctx, over) })
	wg.Go(func() { s.requests(ctx, over) })
	wg.Wait()
	return errors.Join(ctx.Err(), chaosErr, sampleErr)
}
