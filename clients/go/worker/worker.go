// Package worker runs the jobs of a waterwheel server: as a child of it, or attached to servers from anywhere.
//
//	w := &worker.Worker{Name: "thumbs 1.4"}
//	w.Handle("thumb", func(ctx context.Context, job *worker.Job) ([]byte, string, error) {
//		return thumbnail(job.Payload, job.Labels["size"]), "image/jpeg", nil
//	})
//	log.Fatal(w.Run(context.Background()))
package worker

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
	waterwheel "waterwheel.dev/go"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// Handler does one job, and returns its output and the media type of that. It ends early once the context is done:
// context.Cause has the reason, such as DEADLINE. Calls with the context carry on the trace of the job.
type Handler func(ctx context.Context, job *Job) (output []byte, contentType string, err error)

// BatchHandler does jobs together, and returns one result for each. An error is that of all.
type BatchHandler func(jobs []*Job) ([]Result, error)

// Result is that of one job of a batch.
type Result struct {
	Output      []byte
	ContentType string
	Err         error
}

// Worker has handlers for kinds of jobs. Load what is slow to load, a model or a connection, before Run.
type Worker struct {
	// Name and version, for people.
	Name string
	// Slots are the jobs at once, over all servers together. 0 means 4, or the largest batch. A child has as many as the
	// `jobs_per_process` of its program.
	Slots int
	// Addresses to attach to. Without any, they are those in WATERWHEEL_ADDRESS, between commas.
	Addresses []string
	// Options are TLS and a token for servers that it attaches to.
	Options waterwheel.Options

	kinds map[string]kind
	// Holds the jobs that run; nil in a child, whose server counts them.
	slots chan struct{}
	// Jobs that are not answered, and the sessions of the servers that they come from.
	held     atomic.Int64
	sessions sync.Map
}

// kind has either a handler or a batch.
type kind struct {
	handler Handler
	batch   *batch
}

// Handle names the handler of a kind. Each job has a goroutine.
func (worker *Worker) Handle(name string, handler Handler) { worker.add(name, kind{handler: handler}) }

// Batch names the handler of a kind that runs up to `most` jobs together, one batch at a time.
func (worker *Worker) Batch(name string, most int, handler BatchHandler) {
	worker.add(name, kind{batch: &batch{handler: handler, most: most, came: make(chan *Job)}})
}

func (worker *Worker) add(name string, its kind) {
	if worker.kinds == nil {
		worker.kinds = map[string]kind{"conformance": {handler: conformance}}
	}
	worker.kinds[name] = its
}

// Run runs jobs until the server lets the child go, or until the context is done, SIGTERM or SIGINT: then it takes no
// more, and returns when those that run are answered.
func (worker *Worker) Run(ctx context.Context) error {
	addresses := worker.Addresses
	if given := os.Getenv("WATERWHEEL_ADDRESS"); len(addresses) == 0 && given != "" {
		addresses = strings.Split(given, ",")
	}
	if len(addresses) > 0 {
		return worker.attachAll(ctx, addresses)
	}
	if !isPipe(3) || !isPipe(4) {
		return errors.New("neither a server started this worker, nor does WATERWHEEL_ADDRESS say where to attach: " +
			"`waterwheel dev --worker FILE` does the first")
	}
	return worker.runChild(ctx, os.NewFile(3, "requests"), os.NewFile(4, "responses"))
}

func (worker *Worker) names() []string { return slices.Sorted(maps.Keys(worker.kinds)) }

// serve does one job.
func (worker *Worker) serve(job *Job) {
	switch its := worker.kinds[job.Kind]; {
	case its.batch != nil:
		its.batch.add(job)
	case its.handler == nil:
		job.fail(&Failed{Code: "UNIMPLEMENTED", Message: "no handler for the kind " + job.Kind})
	case worker.slots == nil:
		job.run(its.handler)
	default:
		// Each server gives as many jobs as there are slots. One that is cancelled here is answered at once.
		select {
		case worker.slots <- struct{}{}:
			defer func() { <-worker.slots }()
		case <-job.ctx.Done():
		}
		job.run(its.handler)
	}
}

// What `waterwheel worker test` asks for.
func conformance(ctx context.Context, job *Job) ([]byte, string, error) {
	switch job.Labels["task"] {
	case "chunks":
		for number := range 3 {
			if err := job.Output([]byte(fmt.Sprintln(number))); err != nil {
				return nil, "", err
			}
		}
		return []byte("end\n"), "text/plain", nil
	case "progress":
		job.Progress(0.5, "half of it")
	case "fail":
		return nil, "", &Failed{Code: "NOT_FOUND", Message: "no such picture"}
	case "wait":
		<-ctx.Done()
		return nil, "", ctx.Err()
	case "print":
		fmt.Println("a line on standard output")
	case "crash":
		log.Fatal("a crash that the job asked for")
	}
	return job.Payload, job.ContentType, nil
}

// Tested is what a handler did in a test.
type Tested struct {
	// Output has all pieces of it.
	Output      []byte
	ContentType string
	Progress    []float64
	// Err is nil if the job completed.
	Err *Failed
}

// Test runs a job without a server. The end of the context cancels it. Its kind may be left out where there is but one.
func (worker *Worker) Test(ctx context.Context, run *Run) Tested {
	if run.Kind == "" && len(worker.kinds) == 2 {
		// The other one is that of `worker test`.
		names := slices.DeleteFunc(worker.names(), func(name string) bool { return name == "conformance" })
		run = proto.CloneOf(run)
		run.Kind = names[0]
	}
	tested, ended := Tested{}, make(chan struct{})
	var session *session
	session = newSession(context.Background(), worker, func(message *pb.AttachRequest) {
		if output := message.GetOutput(); output != nil {
			tested.Output = append(tested.Output, output.Data...)
			session.taken(output.Id)
		}
		if progress := message.GetProgress(); progress != nil {
			tested.Progress = append(tested.Progress, progress.Fraction)
		}
		done, failed := message.GetDone(), message.GetFailed()
		if done != nil {
			tested.Output, tested.ContentType = append(tested.Output, done.Data...), done.ContentType
		} else if failed != nil {
			tested.Err = heard(failed)
		}
		if done != nil || failed != nil {
			close(ended)
		}
	})
	session.start(run)
	defer context.AfterFunc(ctx, func() { session.cancel(run.Id, "CALLER") })()
	<-ended
	return tested
}
