package clients

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver/dns"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// directory is a name with several addresses, which change: a DNS server that answers as a cluster does for a headless
// Service.
type directory struct {
	socket    net.PacketConn
	mutex     sync.Mutex
	addresses []string
}

// name starts the server, which lasts as long as the test.
func name(t *testing.T) *directory {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &directory{socket: socket}
	t.Cleanup(func() { socket.Close() })
	go n.serve()
	return n
}

// target is what a channel is opened to.
func (n *directory) target(port string) string {
	return fmt.Sprintf("dns://%s/waterwheel.test:%s", n.socket.LocalAddr(), port)
}

func (n *directory) change(change func(addresses []string) []string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.addresses = change(slices.Clone(n.addresses))
}

func (n *directory) serve() {
	buffer := make([]byte, 4096)
	for {
		size, asker, err := n.socket.ReadFrom(buffer)
		if err != nil {
			return
		}
		if answer, err := n.answer(buffer[:size]); err == nil {
			n.socket.WriteTo(answer, asker)
		}
	}
}

func (n *directory) answer(query []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	answer := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{question},
	}
	if question.Type == dnsmessage.TypeA && strings.HasPrefix(question.Name.String(), "waterwheel.test.") {
		n.change(func(addresses []string) []string {
			for _, address := range addresses {
				answer.Answers = append(answer.Answers, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: question.Class},
					Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(address).To4())},
				})
			}
			return addresses
		})
	}
	return answer.Pack()
}

// ownAddress is the number-th address of the loopback network that no other process uses.
func ownAddress(number int) string {
	process := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+process/256%250, process%256, 2+number)
}

// freePort is a port that nobody has at an address.
func freePort(t *testing.T, address string) string {
	t.Helper()
	listener, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// replicas are servers at addresses of their own and one port, with the name that leads to them.
type replicas struct {
	t       *testing.T
	names   *directory
	config  string
	port    string
	count   int
	running map[string]*server
	clients map[string]pb.WorkerPoolServiceClient
}

func behindOneName(t *testing.T, age string) *replicas {
	// A program that says nothing waits for 30 s before it asks for a name again.
	dns.SetMinResolutionInterval(100 * time.Millisecond)
	config := fmt.Sprintf("%s[drain]\nnotice = \"1s\"\nfinish = \"20s\"\n[server.connections]\nmax_age = %q\n", everyday, age)
	return &replicas{
		t: t, names: name(t), config: config, port: freePort(t, ownAddress(0)),
		running: map[string]*server{}, clients: map[string]pb.WorkerPoolServiceClient{},
	}
}

// add starts one more, at an address that none had.
func (r *replicas) add() string {
	address := ownAddress(r.count)
	r.count++
	r.start(address)
	return address
}

func (r *replicas) start(address string) {
	r.t.Helper()
	r.running[address] = start(r.t, r.config, "--listen", address+":"+r.port)
	r.clients[address] = r.running[address].client()
	r.names.change(func(addresses []string) []string {
		if slices.Contains(addresses, address) {
			return addresses
		}
		return append(addresses, address)
	})
}

// stop ends one as an orchestrator does, and returns how many jobs it did from then on.
func (r *replicas) stop(address string) uint64 {
	r.t.Helper()
	server := r.running[address]
	delete(r.running, address)
	server.terminate()
	receipt, exit := server.end()
	if exit != 0 || len(receipt.Lost) != 0 {
		r.t.Errorf("exit code %d, %+v", exit, receipt)
	}
	return receipt.Finished
}

// kill ends one as a power failure does.
func (r *replicas) kill(address string) {
	r.t.Helper()
	process := r.running[address].process
	delete(r.running, address)
	if err := process.Process.Kill(); err != nil {
		r.t.Fatal(err)
	}
	process.Wait()
}

// works waits until one has done some jobs.
func (r *replicas) works(address string) {
	r.t.Helper()
	eventually(r.t, address+" works", func() bool { return r.completed(address) > 50 })
}

func (r *replicas) completed(address string) uint64 {
	return pool(r.t, r.clients[address], "io").Jobs.Completed
}

// load is calls for as long as a test lasts, and what the application sees of them.
type load struct {
	ended, failed atomic.Int64
	stop          func()
}

// call keeps some calls at a time on a channel of its own, with the service config of deploy/ as it is changed.
func (r *replicas) call(callers int, change func(map[string]any)) *load {
	r.t.Helper()
	config := grpc.WithDefaultServiceConfig(serviceConfig(r.t, change))
	client := pb.NewWorkerPoolServiceClient(connect(r.t, r.names.target(r.port), config))
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var l load
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				// A context of its own: the last calls are let finish.
				own, end := context.WithTimeout(context.Background(), patience)
				if _, err := client.Submit(own, submission("sleep", "2")); err != nil {
					l.failed.Add(1)
					r.t.Log(err)
				}
				end()
				l.ended.Add(1)
			}
		})
	}
	l.stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	r.t.Cleanup(l.stop)
	return &l
}

// TestRollingRestartLosesNoCall replaces three replicas, one after the other: at the same addresses, as systemd restarts
// a service, and at new ones, as a Deployment does, the new replica first, and then the end of the old one, whose address
// is taken out at once.
func TestRollingRestartLosesNoCall(t *testing.T) {
	for _, way := range []struct {
		name         string
		change       func(map[string]any)
		newAddresses bool
		calls        int64
	}{
		{"as shipped, the same addresses", asShipped, false, 10_000},
		{"as shipped, new addresses", asShipped, true, 2_000},
		{"health checks alone", balanced, false, 2_000},
	} {
		t.Run(way.name, func(t *testing.T) {
			replicas := behindOneName(t, "30m")
			old := []string{replicas.add(), replicas.add(), replicas.add()}
			load := replicas.call(16, way.change)
			begin := time.Now()
			var finished []uint64
			for _, address := range old {
				replicas.works(address)
				if way.newAddresses {
					replicas.add()
					replicas.names.change(func(addresses []string) []string {
						return slices.DeleteFunc(addresses, func(one string) bool { return one == address })
					})
				}
				finished = append(finished, replicas.stop(address))
				if !way.newAddresses {
					replicas.start(address)
					// What minReadySeconds is for: to be ready is not yet to be found. Clients wait a second after
					// a connection was refused, and replicas replaced faster than that leave a client with none.
					replicas.works(address)
				}
			}
			for address := range replicas.running {
				replicas.works(address)
			}
			eventually(t, "calls enough", func() bool { return load.ended.Load() >= way.calls })
			load.stop()
			t.Logf("%d calls in %v, %v of them in drains", load.ended.Load(), time.Since(begin), finished)
			if load.failed.Load() != 0 {
				t.Errorf("%d of %d calls failed", load.failed.Load(), load.ended.Load())
			}
		})
	}
}

// TestClientsFindAReplicaThatIsAdded has nothing fail that would make a client ask for the name again: it does so when
// a connection has its age.
func TestClientsFindAReplicaThatIsAdded(t *testing.T) {
	replicas := behindOneName(t, "1s")
	for range 3 {
		replicas.add()
	}
	var loads []*load
	for range 4 {
		loads = append(loads, replicas.call(4, asShipped))
	}
	for address := range replicas.running {
		replicas.works(address)
	}
	added := replicas.add()
	begin := time.Now()
	// One connection is this test's own.
	all := uint64(len(loads)) + 1
	eventually(t, "every client finds it", func() bool { return open(t, replicas.running[added]) >= all })
	found := time.Since(begin)
	before := map[string]uint64{}
	for address := range replicas.running {
		before[address] = replicas.completed(address)
	}
	eventually(t, "it has its share", func() bool {
		others := uint64(0)
		for address := range replicas.running {
			if address != added {
				others += replicas.completed(address) - before[address]
			}
		}
		return others > 600 && replicas.completed(added)-before[added] > others/10
	})
	for _, load := range loads {
		load.stop()
		if load.failed.Load() != 0 {
			t.Errorf("%d of %d calls failed", load.failed.Load(), load.ended.Load())
		}
	}
	t.Logf("%d clients found it within %v", len(loads), found)
}

var connections = regexp.MustCompile(`(?m)^waterwheel_connections\{listener="public"\} (\d+)`)

// open is how many connections a server has.
func open(t *testing.T, s *server) uint64 {
	t.Helper()
	response, err := http.Get("http://" + s.ops + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := connections.FindSubmatch(text)
	if found == nil {
		t.Fatalf("no connections in %s", text)
	}
	count, err := strconv.ParseUint(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return count
}
