package waterwheel_test

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	waterwheel "waterwheel.dev/go"
)

// A server drains, and another one takes its place: no call fails, whatever it waits for.
func TestNoCallFailsWhileAServerIsReplaced(t *testing.T) {
	const config = "[pool.one]\nworkers = 4\nwhen_full = \"wait\"\n[kind.sleep]\npool = \"one\"\nbuiltin = \"sleep\"\n"
	client, server := serve(t, config)
	stop := make(chan struct{})
	var all sync.WaitGroup
	var calls, outcomes atomic.Int32
	for range 8 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := client.Submit(within(t, patience), job("sleep", "5")); err != nil {
					t.Error(err)
				}
				calls.Add(1)
			}
		})
	}
	all.Go(func() {
		endless := func(yield func(*waterwheel.Job) bool) {
			for {
				select {
				case <-stop:
					return
				default:
					if !yield(job("sleep", "5")) {
						return
					}
				}
			}
		}
		for outcome := range client.SubmitMany(within(t, 3*patience), endless) {
			if outcome.Err != nil {
				t.Error(outcome.Err)
			}
			outcomes.Add(1)
		}
	})
	for range 3 {
		fresh := dial(t, server.address, waterwheel.Options{})
		eventually(t, "jobs run", func() bool { return figures(t, fresh).Jobs.Completed > 100 })
		_ = server.process.Process.Signal(syscall.SIGTERM)
		_ = server.process.Wait()
		server = start(t, config, server.address)
	}
	close(stop)
	all.Wait()
	if calls.Load() == 0 || outcomes.Load() < 300 {
		t.Errorf("%d calls, %d of many", calls.Load(), outcomes.Load())
	}
}
