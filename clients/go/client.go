// Package waterwheel calls a waterwheel server: it submits jobs, streams them, and creates detached ones.
//
// Each call tries again by the delay that the server asks for, within the one deadline of its context, and never where
// the work may have started, unless its kind is idempotent. How a call fails is one of four types: [Refused], [Missed],
// [Failed] and [Lost]. The package worker is for the other side.
package waterwheel

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // The service config asks for health checks.
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// defaultDeadline is that of a call whose context has none. The server has the same.
const defaultDeadline = 30 * time.Second

// Messages of the contract.
type (
	// Job is one unit of work: its kind, payload, labels, and how it queues.
	Job = pb.Job
	// Result is the output of a job, and where its budget went.
	Result = pb.JobResult
)

// Options are about connections, of callers and of workers. The zero value is plaintext without a token.
type Options struct {
	// TLS, if it is set, also has the client's certificate.
	TLS *tls.Config
	// Token is sent with each call, also over plaintext. TokenFile is read for each call in its place.
	Token, TokenFile string
	// Authority is the name of the server in TLS and in its calls, if the address has another one.
	Authority string
	// BehindProxy is for a proxy that balances calls: the client does neither that nor health checks.
	BehindProxy bool
	// Idempotent are the kinds whose jobs may run twice: those are sent again where it is unknown whether they ran.
	Idempotent []string
	// Dial has further options of gRPC, such as interceptors.
	Dial []grpc.DialOption
}

// DialOptions are those of gRPC that the options mean.
func (options Options) DialOptions() []grpc.DialOption {
	transport := insecure.NewCredentials()
	if options.TLS != nil {
		transport = credentials.NewTLS(options.TLS)
	}
	all := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		// It finds a server that is gone.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 5 * time.Second, Backoff: backoff.Config{
			BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second,
		}}),
		// The server has the bounds of messages.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithDisableRetry(),
	}
	if options.Token != "" || options.TokenFile != "" {
		all = append(all, grpc.WithPerRPCCredentials(bearer{options.Token, options.TokenFile}))
	}
	if options.Authority != "" {
		all = append(all, grpc.WithAuthority(options.Authority))
	}
	return append(all, options.Dial...)
}

// bearer is a token that a server asks for.
type bearer struct{ token, file string }

func (bearer bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if bearer.file != "" {
		text, err := os.ReadFile(bearer.file)
		if err != nil {
			return nil, status.Error(codes.Unauthenticated, err.Error())
		}
		bearer.token = strings.TrimSpace(string(text))
	}
	return map[string]string{"authorization": "Bearer " + bearer.token}, nil
}

func (bearer) RequireTransportSecurity() bool { return false }

// Client calls one server, or all replicas that a name resolves to. It may be used by many goroutines.
type Client struct {
	connection *grpc.ClientConn
	idempotent []string
	pool       pb.WorkerPoolServiceClient
	jobs       pb.JobServiceClient
}

// NewClient returns a client of an address as the commands take it: HOST:PORT, https://HOST:PORT, unix:PATH. An empty one
// is that in WATERWHEEL_SERVER, or 127.0.0.1:7070. It connects with the first call.
func NewClient(address string, options Options) (*Client, error) {
	address = cmp.Or(address, os.Getenv("WATERWHEEL_SERVER"), "127.0.0.1:7070")
	address, hasTLS := strings.CutPrefix(strings.TrimPrefix(address, "http://"), "https://")
	if hasTLS && options.TLS == nil {
		options.TLS = &tls.Config{}
	}
	dial := options.DialOptions()
	if !options.BehindProxy {
		dial = append(dial, grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}],
			"healthCheckConfig": {"serviceName": "waterwheel.v1.WorkerPoolService"}}`))
	}
	connection, err := grpc.NewClient(address, dial...)
	if err != nil {
		return nil, err
	}
	pool, jobs := pb.NewWorkerPoolServiceClient(connection), pb.NewJobServiceClient(connection)
	return &Client{connection, options.Idempotent, pool, jobs}, nil
}

// Connection is for RPCs that the client has no method for, by the stubs in the package waterwheelv1.
func (client *Client) Connection() *grpc.ClientConn { return client.connection }

// Close ends the connections, and with them all calls.
func (client *Client) Close() error { return client.connection.Close() }

// Submit runs a job, and returns its result. The deadline of the context is that of all tries; without one it is 30 s.
func (client *Client) Submit(ctx context.Context, job *Job) (*Result, error) {
	answer, err := call(ctx, client.runs(job), client.pool.Submit, &pb.SubmitRequest{Job: job})
	return answer.GetResult(), err
}

// Event is one event of a streamed job: one of its fields is set.
type Event struct {
	// Output is a piece of the output.
	Output []byte
	// Progress is what the handler says of how far it is.
	Progress *pb.Progress
	// Finished is the last event of a job that completed.
	Finished *pb.Finished
}

// Stream runs a job, and yields its events as they happen, or the error as the last. A loop that ends early cancels the
// job. Only a job without an event is sent again.
func (client *Client) Stream(ctx context.Context, job *Job) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := bounded(ctx)
		defer cancel()
		began, tries := false, tries{runs: client.runs(job)}
		err := follow(ctx, client.pool.Stream, &pb.StreamRequest{Job: job}, func(event *pb.StreamResponse) bool {
			began = true
			if event.GetStarted() != nil {
				return true
			}
			return yield(Event{event.GetOutputChunk().GetData(), event.GetProgress(), event.GetFinished()}, nil)
		}, func(failure error) bool { return !began && tries.another(ctx, failure) })
		if err != nil {
			yield(Event{}, err)
		}
	}
}

// method is that of a stub.
type method[Q, A any] = func(ctx context.Context, request Q, options ...grpc.CallOption) (A, error)

// follow passes on the messages of a call, until it ends or `pass` says so, and makes it again while `another` allows it.
func follow[Q, M any](
	ctx context.Context, rpc method[Q, grpc.ServerStreamingClient[M]], request Q,
	pass func(*M) bool, another func(failure error) bool,
) error {
	for {
		var server peer.Peer
		messages, err := rpc(ctx, request, grpc.Peer(&server))
		for err == nil {
			var message *M
			if message, err = messages.Recv(); err == nil && !pass(message) {
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if failure := classify(ctx, err, server.Addr != nil); !another(failure) {
			return failure
		}
	}
}

// call makes a call until it succeeds, or until no other try makes sense in the time that is left.
func call[Q, A any](ctx context.Context, runs int, rpc method[Q, A], request Q) (answer A, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	err = persist(ctx, runs, func() (err error) {
		var server peer.Peer
		answer, err = rpc(ctx, request, grpc.Peer(&server))
		return classify(ctx, err, server.Addr != nil)
	})
	return answer, err
}

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, defaultDeadline)
}

// runs is how often a job may run again where it may have run.
func (client *Client) runs(job *Job) int {
	if slices.Contains(client.idempotent, job.GetKind()) {
		return 2
	}
	return 0
}

// persist tries until no other try makes sense. It returns the last error, and not the bare one of a deadline.
func persist(ctx context.Context, runs int, try func() error) error {
	for tries := (tries{runs: runs}); ; {
		if err := try(); err == nil || !tries.another(ctx, err) {
			return err
		}
	}
}

// tries of one call: how often it may be made again where the work may have started, and how often it was tried.
type tries struct{ runs, count int }

// another says whether another try makes sense after a failure, and waits until it does. The delay is that of the server;
// our own where any server may take the call.
func (tries *tries) another(ctx context.Context, failure error) bool {
	delay := min(50*time.Millisecond<<min(tries.count, 5), time.Second)
	delay = delay/2 + rand.N(delay/2)
	tries.count++
	switch failure := failure.(type) {
	case *Refused:
		if failure.RetryAfter > 0 {
			delay = failure.RetryAfter
		} else if failure.Code != codes.Unavailable {
			return false
		}
	case *Lost:
		// The server says UNAVAILABLE of what it lost if the kind is idempotent there.
		if isSaid := failure.Started && failure.Code == codes.Unavailable; !isSaid {
			if tries.runs--; tries.runs < 0 {
				return false
			}
		}
	default:
		return false
	}
	if end, has := ctx.Deadline(); has && time.Until(end) <= delay {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(delay):
		return true
	}
}
