// A worker that attaches to servers from anywhere, and runs their jobs of the kind `thumbnail`.
//
//	bash examples/go/stubs.sh
//	cd examples/go && go run ./worker 127.0.0.1:7070 [ADDRESS...]
//
// Load what is slow to load (a model, a connection) in main, once. It is kept from job to job.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// Jobs at once from each server.
const concurrency = 4

// Most bytes of one message: a server takes no more than its largest payload.
const piece = 1 << 20

// Does one job: returns the result and its content type.
func run(ctx context.Context, job *Job) ([]byte, string, error) {
	return job.Payload, job.ContentType, nil
}

// What `waterwheel worker test` asks for. It shows all that a handler can do; yours may do without it.
func conformance(ctx context.Context, job *Job) ([]byte, string, error) {
	switch job.Labels["task"] {
	case "chunks":
		for number := range 3 {
			job.Output([]byte(fmt.Sprintln(number)))
		}
		return []byte("end\n"), "text/plain", nil
	case "progress":
		job.Progress(0.5, "half of it")
	case "fail":
		return nil, "", &Failed{Code: "NOT_FOUND", Message: "no such picture"}
	case "wait":
		<-ctx.Done()
		return nil, "", &Failed{Code: "CANCELLED", Message: "stopped because of " + context.Cause(ctx).Error()}
	case "print":
		fmt.Println("a line on standard output")
	case "crash":
		os.Exit(3)
	}
	return job.Payload, job.ContentType, nil
}

var kinds = map[string]func(context.Context, *Job) ([]byte, string, error){"thumbnail": run, "conformance": conformance}

// Failed ends a job with a gRPC status code. Any other error ends it with INTERNAL.
type Failed struct {
	Code, Message string
	Retryable     *bool
}

func (failed *Failed) Error() string { return failed.Message }

// Job is what a handler gets.
type Job struct {
	*pb.AttachResponse_Run
	call   *call
	ctx    context.Context
	cancel context.CancelCauseFunc
	// Holds the pieces of output that were sent, and that the server has not taken.
	untaken chan struct{}
}

// Output sends a piece of the result now, which a caller of `Stream` gets as a chunk. It waits for a slow caller.
func (job *Job) Output(data []byte) {
	select {
	case job.untaken <- struct{}{}:
	case <-job.ctx.Done():
		return
	}
	output := &pb.AttachRequest_Output{Id: job.Id, Data: data}
	job.call.say(&pb.AttachRequest{Message: &pb.AttachRequest_Output_{Output: output}})
}

// Progress says how far the job is, from 0 to 1.
func (job *Job) Progress(fraction float64, message string) {
	progress := &pb.AttachRequest_Progress{Id: job.Id, Fraction: fraction, Message: text(message)}
	job.call.say(&pb.AttachRequest{Message: &pb.AttachRequest_Progress_{Progress: progress}})
}

// call is one call of Attach, on which several jobs answer.
type call struct {
	stream  grpc.BidiStreamingClient[pb.AttachRequest, pb.AttachResponse]
	sending sync.Mutex
	jobs    sync.Map
}

// say does not tell of an error: it is that of the call, which its reader sees.
func (call *call) say(message *pb.AttachRequest) {
	call.sending.Lock()
	defer call.sending.Unlock()
	call.stream.Send(message)
}

func (call *call) job(id string) *Job {
	job, _ := call.jobs.Load(id)
	known, _ := job.(*Job)
	return known
}

// serve runs one job. Every way out of its handler is an answer: a panic and the end of its goroutine too.
func (call *call) serve(job *Job) {
	var data []byte
	contentType, err := "", errors.New("the handler ended its goroutine")
	defer job.cancel(nil)
	defer func() {
		if fault := recover(); fault != nil {
			debug.PrintStack()
			err = fmt.Errorf("panic: %v", fault)
		}
		call.answer(job, data, contentType, err)
	}()
	handler := kinds[job.Kind]
	if handler == nil {
		err = &Failed{Code: "UNIMPLEMENTED", Message: "no handler for the kind " + job.Kind}
		return
	}
	data, contentType, err = handler(job.ctx, job)
}

// text makes a text UTF-8: a message with another one ends the call, with all of its jobs.
func text(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

func (call *call) answer(job *Job, data []byte, contentType string, err error) {
	for ; err == nil && len(data) > piece; data = data[piece:] {
		job.Output(data[:piece])
	}
	call.jobs.Delete(job.Id)
	if err == nil {
		done := &pb.AttachRequest_Done{Id: job.Id, Data: data, ContentType: text(contentType)}
		call.say(&pb.AttachRequest{Message: &pb.AttachRequest_Done_{Done: done}})
		return
	}
	said := &Failed{Code: "INTERNAL", Message: err.Error()}
	errors.As(err, &said)
	message := text(said.Message[:min(len(said.Message), 1000)])
	failed := &pb.AttachRequest_Failed{Id: job.Id, Code: text(said.Code), Message: message, Retryable: said.Retryable}
	call.say(&pb.AttachRequest{Message: &pb.AttachRequest_Failed_{Failed: failed}})
}

// The keepalive finds a server that is gone, and payloads may be larger than gRPC's default of 4 MiB.
var options = []grpc.DialOption{
	grpc.WithTransportCredentials(insecure.NewCredentials()),
	grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
	grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
}

// attach attaches to one server, and runs its jobs until the call ends. It says whether another loop has taken over.
func attach(address string, leaving context.Context) (isFollowed bool, err error) {
	channel, err := grpc.NewClient(address, options...)
	if err != nil {
		return false, err
	}
	defer channel.Close()
	// No caller waits for the jobs any more once the call has ended.
	ctx, detach := context.WithCancelCause(context.Background())
	defer detach(errors.New("DETACHED"))
	stream, err := pb.NewWorkerServiceClient(channel).Attach(ctx)
	if err != nil {
		return false, err
	}
	call := &call{stream: stream}
	hello := &pb.AttachRequest_Hello{Name: "thumbnail", Kinds: slices.Collect(maps.Keys(kinds)), Concurrency: concurrency}
	call.say(&pb.AttachRequest{Message: &pb.AttachRequest_Hello_{Hello: hello}})
	defer context.AfterFunc(leaving, func() {
		call.say(&pb.AttachRequest{Message: &pb.AttachRequest_Leaving_{Leaving: &pb.AttachRequest_Leaving{}}})
	})()
	for {
		response, err := stream.Recv()
		if err != nil {
			return isFollowed, err
		}
		if response.GetLeave() != nil && !isFollowed {
			// The jobs of this call may take long: the free slots attach again at once.
			isFollowed = true
			loops.Go(func() { stayAttached(address, leaving) })
		}
		if run := response.GetRun(); run != nil {
			ctx, cancel := context.WithCancelCause(ctx)
			job := &Job{run, call, ctx, cancel, make(chan struct{}, 4)}
			call.jobs.Store(run.Id, job)
			go call.serve(job)
		}
		if job := call.job(response.GetTaken().GetId()); job != nil {
			<-job.untaken
		}
		if job := call.job(response.GetCancel().GetId()); job != nil {
			job.cancel(errors.New(response.GetCancel().Reason))
		}
	}
}

var loops sync.WaitGroup

// stayAttached attaches again whenever the call ends: the server restarts, or the network breaks.
func stayAttached(address string, leaving context.Context) {
	for leaving.Err() == nil {
		isFollowed, err := attach(address, leaving)
		if err != io.EOF {
			log.Printf("%s: %v", address, err)
		}
		if isFollowed {
			return
		}
		select {
		case <-leaving.Done():
		case <-time.After(100*time.Millisecond + rand.N(900*time.Millisecond)):
		}
	}
}

func main() {
	addresses := os.Args[1:]
	if len(addresses) == 0 {
		addresses = strings.Split(os.Getenv("WATERWHEEL_ADDRESS"), ",")
	}
	// By a signal it takes no more jobs, and ends once those that run are answered.
	leaving, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	for _, address := range addresses {
		loops.Go(func() { stayAttached(address, leaving) })
	}
	loops.Wait()
}
