package clients

import (
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	_ "google.golang.org/grpc/orca" // reads the load of the server from trailers, for balancers
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	pb "waterwheel.dev/go/waterwheel/v1"

	orcapb "github.com/cncf/xds/go/xds/data/orca/v3"
)

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
	if load := last(1); load.ApplicationUtilization != 0.01 {
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
