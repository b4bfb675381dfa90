package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// How the addresses of a name are found, and the time between two looks at them.
var lookup, every = net.DefaultResolver.LookupNetIP, 3 * time.Second

// attachment is one server, from the time that the name has its address until it does not any more.
type attachment struct {
	worker *Worker
	// The name as it was given, and one address of it.
	name, address string
	// Done when the worker takes no more jobs of the server.
	leaving context.Context
	leave   context.CancelFunc
	missing int
	loops   *sync.WaitGroup
	// Ends the worker.
	end context.CancelFunc
}

// attachAll runs jobs of all servers that the names have. By a signal it takes no more, and ends with the last answer.
func (worker *Worker) attachAll(ctx context.Context, names []string) error {
	leaving, end := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer end()
	slots := worker.Slots
	if slots == 0 {
		slots = 4
		for _, its := range worker.kinds {
			if its.batch != nil {
				slots = max(slots, its.batch.most)
			}
		}
	}
	worker.slots = make(chan struct{}, slots)
	var loops sync.WaitGroup
	for _, name := range names {
		loops.Go(func() { worker.follow(leaving, end, strings.TrimSpace(name), &loops) })
	}
	loops.Wait()
	return nil
}

// follow stays attached to each address of a name. It resolves the name again and again.
func (worker *Worker) follow(leaving context.Context, end context.CancelFunc, name string, loops *sync.WaitGroup) {
	attached := map[string]*attachment{}
	for ; leaving.Err() == nil; pause(leaving, every) {
		addresses, err := resolve(leaving, name)
		if err != nil {
			slog.Warn("a server cannot be found", "name", name, "error", err)
		}
		if len(addresses) > 0 {
			for address, its := range attached {
				// A name may lack an address for a moment.
				if its.missing++; its.missing >= 3 {
					its.leave()
					delete(attached, address)
				}
			}
		}
		for _, address := range addresses {
			if attached[address] == nil {
				leaving, leave := context.WithCancel(leaving)
				its := &attachment{worker, name, address, leaving, leave, 0, loops, end}
				attached[address] = its
				loops.Go(its.stay)
			}
			attached[address].missing = 0
		}
	}
}

// resolve gives the IPv4 addresses of a name where there are any. What is none of DNS is its own address.
func resolve(ctx context.Context, name string) ([]string, error) {
	host, port, err := net.SplitHostPort(name)
	if err != nil || net.ParseIP(host) != nil || strings.HasPrefix(name, "unix:") {
		return []string{name}, nil
	}
	found, err := lookup(ctx, "ip4", host)
	if len(found) == 0 {
		found, err = lookup(ctx, "ip6", host)
	}
	addresses := make([]string, len(found))
	for number, ip := range found {
		addresses[number] = net.JoinHostPort(ip.String(), port)
	}
	return addresses, err
}

// stay attaches again whenever the call ends: the server restarts, or the network breaks.
func (its *attachment) stay() {
	for its.leaving.Err() == nil {
		isFollowed, err := its.attach()
		if !errors.Is(err, io.EOF) {
			slog.Warn("a server is gone", "address", its.address, "error", err)
		}
		if isFollowed {
			return
		}
		pause(its.leaving, 100*time.Millisecond+rand.N(900*time.Millisecond))
	}
}

func pause(ctx context.Context, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(most):
	}
}

// attach runs the jobs of one call, until it ends. It says whether another loop has taken over.
func (its *attachment) attach() (isFollowed bool, err error) {
	target, options := its.address, its.worker.Options
	if its.address != its.name {
		target = "passthrough:///" + its.address
		if options.Authority == "" {
			options.Authority = its.name
		}
	}
	channel, err := grpc.NewClient(target, options.DialOptions()...)
	if err != nil {
		return false, err
	}
	defer channel.Close()
	// No caller waits for the jobs any more once the call has ended.
	ctx, detach := context.WithCancelCause(context.Background())
	defer detach(errors.New("DETACHED"))
	call, err := pb.NewWorkerServiceClient(channel).Attach(ctx)
	if err != nil {
		return false, err
	}
	// An error is that of the call, which its reader sees.
	session := newSession(ctx, its.worker, func(message *pb.AttachRequest) { _ = call.Send(message) })
	slots := uint32(cap(its.worker.slots))
	hello := &pb.AttachRequest_Hello{Name: its.worker.Name, Kinds: its.worker.names(), Concurrency: slots}
	session.send(&pb.AttachRequest{Message: &pb.AttachRequest_Hello_{Hello: hello}})
	go session.share()
	its.worker.sessions.Store(session, nil)
	defer its.worker.sessions.Delete(session)
	defer context.AfterFunc(its.leaving, func() {
		session.sending.Lock()
		defer session.sending.Unlock()
		session.send(&pb.AttachRequest{Message: &pb.AttachRequest_Leaving_{Leaving: &pb.AttachRequest_Leaving{}}})
	})()
	for {
		message, err := call.Recv()
		if err != nil {
			return isFollowed, err
		}
		session.receive(message)
		if leave := message.GetLeave(); leave.GetIdle() {
			its.end()
		} else if leave != nil && !isFollowed {
			// The jobs of this call may take long: the free slots attach again at once.
			isFollowed = true
			its.loops.Go(its.stay)
		}
	}
}
