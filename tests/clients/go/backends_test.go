package clients

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	_ "google.golang.org/grpc/health" // lets the service config ask for health checks
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// asShipped is the service config of deploy/.
func asShipped(map[string]any) {}

// balanced spreads calls over the backends that say SERVING, and never retries.
func balanced(config map[string]any) {
	delete(config, "methodConfig")
}

// sticky stays with one backend until it refuses, and then retries elsewhere.
func sticky(config map[string]any) {
	delete(config, "healthCheckConfig")
	config["loadBalancingConfig"] = []any{map[string]any{"pick_first": map[string]any{}}}
}

// TestDrainOfOneOfTwoBackendsFailsNoCall keeps calls in flight over both from before the drain until after its end.
func TestDrainOfOneOfTwoBackendsFailsNoCall(t *testing.T) {
	changes := map[string]func(map[string]any){"as shipped": asShipped, "health checks": balanced, "retries": sticky}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			leaver, stayer := start(t, leaving), start(t, leaving)
			backends := manual.NewBuilderWithScheme("backends")
			backends.InitialState(resolver.State{Endpoints: []resolver.Endpoint{
				{Addresses: []resolver.Address{{Addr: leaver.address}}},
				{Addresses: []resolver.Address{{Addr: stayer.address}}},
			}})
			config := grpc.WithDefaultServiceConfig(serviceConfig(t, change))
			connection := connect(t, "backends:///waterwheel", grpc.WithResolvers(backends), config)
			client := pb.NewWorkerPoolServiceClient(connection)
			ctx, stop := context.WithCancel(within(t))
			var callers sync.WaitGroup
			var completed, failed atomic.Int64
			for range 8 {
				callers.Go(func() {
					for ctx.Err() == nil {
						// A context of its own: the last calls are let finish.
						if _, err := client.Submit(within(t), submission("sleep", "20")); err != nil {
							failed.Add(1)
							t.Log(err)
						}
						completed.Add(1)
					}
				})
			}
			left, stayed := leaver.client(), stayer.client()
			completedBy := func(client pb.WorkerPoolServiceClient) uint64 { return pool(t, client, "io").Jobs.Completed }
			eventually(t, "the leaver works", func() bool { return completedBy(left) > 20 })
			leaver.terminate()
			if receipt, exit := leaver.end(); exit != 0 {
				t.Errorf("exit code %d, %+v", exit, receipt)
			}
			before := completedBy(stayed)
			eventually(t, "the stayer works", func() bool { return completedBy(stayed) > before+50 })
			stop()
			callers.Wait()
			if failed.Load() != 0 {
				t.Errorf("%d of %d calls failed", failed.Load(), completed.Load())
			}
			t.Logf("%d calls", completed.Load())
		})
	}
}

// TestGoAwayFailsNoCallInFlight drains a server that many calls of one connection wait on.
func TestGoAwayFailsNoCallInFlight(t *testing.T) {
	server := start(t, everyday+`
[drain]
notice = "100ms"
`)
	client := server.client()
	var calls []<-chan error
	for range 50 {
		calls = append(calls, background(within(t), client, "sleep", "150"))
	}
	eventually(t, "all jobs are taken", func() bool {
		return pool(t, client, "io").Jobs.Accepted == 50
	})
	begin := time.Now()
	server.terminate()
	for _, ended := range calls {
		if err := await(t, ended); err != nil {
			t.Error(err)
		}
	}
	t.Logf("the last call ended %v after SIGTERM", time.Since(begin))
	if receipt, exit := server.end(); exit != 0 || len(receipt.Lost) != 0 {
		t.Errorf("exit code %d, %+v", exit, receipt)
	}
}
