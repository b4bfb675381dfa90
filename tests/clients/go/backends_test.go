package clients

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	_ "google.golang.org/grpc/health" // lets the service config ask for health checks
	_ "google.golang.org/grpc/orca"   // reads the load of the server from trailers, for balancers
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

// leaving is the everyday server with a notice that is long enough to look around in.
const leaving = everyday + `
[drain]
notice = "1500ms"
finish = "15s"
kill = "1s"
`

// TestDrainOfOneOfTwoBackendsFailsNoCallThatIsRetried keeps calls in flight from before the drain until after its end.
func TestDrainOfOneOfTwoBackendsFailsNoCallThatIsRetried(t *testing.T) {
	leaver, stayer := start(t, leaving), start(t, leaving)
	backends := manual.NewBuilderWithScheme("backends")
	backends.InitialState(resolver.State{Endpoints: []resolver.Endpoint{
		{Addresses: []resolver.Address{{Addr: leaver.address}}},
		{Addresses: []resolver.Address{{Addr: stayer.address}}},
	}})
	config := grpc.WithDefaultServiceConfig(serviceConfig(t, sticky))
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

// loads is a balancer of one backend that notes what the library tells it of the backend's load.
type loads struct {
	mutex sync.Mutex
	all   []*orcapb.OrcaLoadReport
}

func (l *loads) Build(info base.PickerBuildInfo) balancer.Picker {
	for connection := range info.ReadySCs {
		return &noting{connection, l}
	}
	return base.NewErrPicker(balancer.ErrNoSubConnAvailable)
}

type noting struct {
	connection balancer.SubConn
	loads      *loads
}

func (n *noting) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	done := func(info balancer.DoneInfo) {
		n.loads.mutex.Lock()
		defer n.loads.mutex.Unlock()
		report, _ := info.ServerLoad.(*orcapb.OrcaLoadReport)
		n.loads.all = append(n.loads.all, report)
	}
	return balancer.PickResult{SubConn: n.connection, Done: done}, nil
}

// TestBalancerIsToldTheLoad checks that a stock client's balancers, such as weighted_round_robin, get the load of the
// server with every answer, results and refusals alike.
func TestBalancerIsToldTheLoad(t *testing.T) {
	server := start(t, strings.Replace(tiny, "[server]", "[server]\nload_reports = true", 1))
	var noted loads
	balancer.Register(base.NewBalancerBuilder("noting", &noted, base.Config{}))
	backend := manual.NewBuilderWithScheme("backend")
	backend.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: server.address}}})
	config := grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"noting": {}}]}`)
	client := pb.NewWorkerPoolServiceClient(connect(t, "backend:///waterwheel", grpc.WithResolvers(backend), config))
	last := func(calls int) *orcapb.OrcaLoadReport {
		noted.mutex.Lock()
		defer noted.mutex.Unlock()
		if len(noted.all) < calls || noted.all[len(noted.all)-1] == nil {
			t.Fatalf("%d calls, and these loads: %v", calls, noted.all)
		}
		return noted.all[len(noted.all)-1]
	}
	if _, err := client.Submit(within(t), submission("echo", "x")); err != nil {
		t.Fatal(err)
	}
	if load := last(1); load.ApplicationUtilization != 0.1 {
		t.Errorf("of an idle server: %v", load)
	}
	fill(t, server.client())
	eventually(t, "refusals tell that the server is full", func() bool {
		if _, err := client.Submit(within(t), submission("echo", "x")); err == nil {
			t.Fatal("the pool is full")
		}
		load := last(2)
		return load.ApplicationUtilization == 1 && load.NamedMetrics["queue_depth"] == 1 && load.RpsFractional > 0
	})
}
