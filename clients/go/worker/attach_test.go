package worker

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// server is what attached, and what left it.
type server struct {
	pb.UnimplementedWorkerServiceServer
	attached, left chan struct{}
	slots          chan uint32
	runs           chan *Run
}

func (server *server) Attach(call grpc.BidiStreamingServer[pb.AttachRequest, pb.AttachResponse]) error {
	go func() {
		for run := range server.runs {
			call.Send(&pb.AttachResponse{Message: &pb.AttachResponse_Run_{Run: run}})
		}
	}()
	for {
		message, err := call.Recv()
		switch {
		case err != nil:
			return err
		case message.GetHello() != nil:
			server.attached <- struct{}{}
		case message.GetSlots() != nil:
			server.slots <- message.GetSlots().Elsewhere
		case message.GetLeaving() != nil:
			server.left <- struct{}{}
			return nil
		}
	}
}

func serve(t *testing.T, address string) (*server, string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	its, calls := &server{attached: make(chan struct{}, 9), left: make(chan struct{}, 9)}, grpc.NewServer()
	its.slots, its.runs = make(chan uint32, 9), make(chan *Run)
	t.Cleanup(func() { close(its.runs) })
	pb.RegisterWorkerServiceServer(calls, its)
	go calls.Serve(listener)
	t.Cleanup(calls.Stop)
	return its, listener.Addr().String()
}

func await(t *testing.T, what string, comes <-chan struct{}) {
	t.Helper()
	select {
	case <-comes:
	case <-time.After(20 * time.Second):
		t.Fatal("waited in vain: ", what)
	}
}

func TestAWorkerFollowsTheAddressesOfAName(t *testing.T) {
	one, address := serve(t, "127.0.0.1:0")
	_, port, _ := net.SplitHostPort(address)
	other, _ := serve(t, "127.0.0.2:"+port)
	var mutex sync.Mutex
	var found []string
	looks := make(chan struct{})
	find := func(addresses ...string) {
		mutex.Lock()
		defer mutex.Unlock()
		found = addresses
	}
	find("127.0.0.1")
	every, lookup = 10*time.Millisecond, func(_ context.Context, network, host string) (ips []netip.Addr, err error) {
		if host != "pool.example" {
			t.Error(host)
		}
		if network != "ip4" {
			return nil, errors.New("no answer")
		}
		mutex.Lock()
		defer mutex.Unlock()
		for _, address := range found {
			ips = append(ips, netip.MustParseAddr(address))
		}
		select {
		case looks <- struct{}{}:
		default:
		}
		return ips, nil
	}
	ctx, leave := context.WithCancel(context.Background())
	ended := make(chan error)
	worker, stop := &Worker{Addresses: []string{"pool.example:" + port}}, make(chan struct{})
	worker.Handle("wait", func(context.Context, *Job) ([]byte, string, error) {
		<-stop
		return nil, "", nil
	})
	go func() { ended <- worker.Run(ctx) }()
	await(t, "the worker attaches", one.attached)
	find("127.0.0.1", "127.0.0.2")
	await(t, "the worker attaches to what is new", other.attached)
	one.runs <- &Run{Id: "1", Kind: "wait"}
	if told := <-other.slots; told != 1 {
		t.Error("one slot has a job of the other server, not ", told)
	}
	close(stop)
	if told := <-other.slots; told != 0 {
		t.Error("the job has ended")
	}
	// Nobody can tell what is gone while the name has no address.
	find()
	for range 5 {
		await(t, "the worker looks again", looks)
	}
	find("127.0.0.2")
	await(t, "the worker leaves what is gone", one.left)
	leave()
	await(t, "the worker leaves", other.left)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if slices.Max([]int{len(one.attached), len(other.attached), len(one.left), len(other.left)}) > 0 {
		t.Error("the worker attached twice, or left what it still had")
	}
}
