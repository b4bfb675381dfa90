package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	pb "waterwheel.dev/go/waterwheel/v1"
)

const (
	// Most bytes of one message: a server takes no more than its largest payload.
	piece = 1 << 18
	// Pieces of one job that the server has not taken: more would hold up the other jobs.
	untaken = 4
	// The server's own bounds of texts, in bytes.
	mostText = 4096
)

// Run is what the server says of a job: its payload, content type, labels, attempt, ids and token.
type Run = pb.AttachResponse_Run

// Job is what a handler gets.
type Job struct {
	*Run
	session *session
	ctx     context.Context
	cancel  context.CancelCauseFunc
	end     time.Time
	untaken chan struct{}
	// Set once it is answered: nothing is said about it after that. The session's mutex guards it.
	isAnswered bool
}

// Failed ends a job with the name of a gRPC code, such as NOT_FOUND. Any other error reaches the caller as UNKNOWN.
type Failed struct {
	Code, Message string
	// Retryable says whether another attempt of a detached job may succeed. Without it, the code decides.
	Retryable *bool
	// Later is set if the answer is "not now".
	Later *Later
}

func (failed *Failed) Error() string { return failed.Code + ": " + failed.Message }

// Later is the error of a handler that says "not now": the job is tried again after some time. It fails with UNAVAILABLE;
// with another code as the Later of a [Failed].
type Later struct {
	// After is that time, of an hour at most; 0 leaves it to the kind.
	After time.Duration
	// Scope is what starts no job until then. It needs a time.
	Scope Scope
	// Uncounted leaves a detached job as many attempts as before.
	Uncounted bool
	// Message is for people.
	Message string
}

// Scope is what a job that is to be tried later holds back.
type Scope string

// Scopes. The empty one is that of one job.
const (
	OneJob   Scope = "JOB"
	LimitKey Scope = "LIMIT_KEY"
	Kind     Scope = "KIND"
)

func (later *Later) Error() string { return cmp.Or(later.Message, "not now") }

// fault is what cannot be sent.
func (later *Later) fault() error {
	switch {
	case !slices.Contains([]Scope{"", OneJob, LimitKey, Kind}, later.Scope):
		return fmt.Errorf("a scope is OneJob, LimitKey or Kind, not %q", later.Scope)
	case later.After < 0:
		return fmt.Errorf("a time is not negative, as %v is", later.After)
	case later.After == 0 && later.Scope != "" && later.Scope != OneJob:
		return fmt.Errorf("the scope %s needs a time", later.Scope)
	}
	return nil
}

// Context is done when the job is to stop.
func (job *Job) Context() context.Context { return job.ctx }

// Cancelled says whether the job is to stop.
func (job *Job) Cancelled() bool { return job.ctx.Err() != nil }

// Budget is the time that is left until the job is stopped.
func (job *Job) Budget() time.Duration { return time.Until(job.end) }

// Log is a logger that names the job, its call and its trace.
func (job *Job) Log() *slog.Logger {
	return slog.With("job", job.JobId, "kind", job.Kind, "request_id", job.RequestId, "traceparent", job.Traceparent)
}

// Progress says how far the job is, from 0 to 1.
func (job *Job) Progress(fraction float64, message string) {
	if math.IsNaN(fraction) || math.IsInf(fraction, 0) {
		fraction = 0
	}
	progress := &pb.AttachRequest_Progress{Id: job.Id, Fraction: fraction, Message: text(message, mostText)}
	job.say(&pb.AttachRequest{Message: &pb.AttachRequest_Progress_{Progress: progress}})
}

// Output sends a piece of the result now, which a caller of Stream gets as a chunk. It waits for a slow caller, and fails
// once the job is to stop.
func (job *Job) Output(data []byte) error {
	for len(data) > 0 {
		select {
		case job.untaken <- struct{}{}:
		case <-job.ctx.Done():
			return job.ctx.Err()
		}
		size := min(len(data), piece)
		output := &pb.AttachRequest_Output{Id: job.Id, Data: data[:size]}
		job.say(&pb.AttachRequest{Message: &pb.AttachRequest_Output_{Output: output}})
		data = data[size:]
	}
	return nil
}

// text makes a text UTF-8 of so many bytes at most: a message with another one ends the call, with all of its jobs.
func text(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "\uFFFD")
}

// run runs a handler. Every way out of it is an answer: a panic and the end of its goroutine too.
func (job *Job) run(handler Handler) {
	output, contentType, err := []byte(nil), "", errors.New("the handler ended its goroutine")
	defer func() { job.answer(output, contentType, err) }()
	defer recovered(&err)
	if job.Cancelled() {
		err = job.ctx.Err()
		return
	}
	output, contentType, err = handler(job.ctx, job)
}

// recovered makes a panic the error of a function that defers it.
func recovered(err *error) {
	if fault := recover(); fault != nil {
		slog.Error("a handler panicked", "panic", fault, "stack", string(debug.Stack()))
		*err = fmt.Errorf("panic: %v", fault)
	}
}

func (job *Job) answer(data []byte, contentType string, err error) {
	if last := max(len(data)-piece, 0); err == nil {
		if err = job.Output(data[:last]); err == nil {
			done := &pb.AttachRequest_Done{Id: job.Id, Data: data[last:], ContentType: text(contentType, 128)}
			job.say(&pb.AttachRequest{Message: &pb.AttachRequest_Done_{Done: done}})
			return
		}
	}
	job.fail(job.failed(err))
}

// failed is what an error says, whose methods may panic.
func (job *Job) failed(err error) (said *Failed) {
	var fault error
	defer func() {
		if fault != nil {
			said = &Failed{Code: "INTERNAL", Message: fault.Error()}
		}
	}()
	defer recovered(&fault)
	var later *Later
	switch {
	case errors.As(err, &said) && said != nil:
	case errors.As(err, &later):
		said = &Failed{Code: "UNAVAILABLE", Message: later.Error(), Later: later}
	case job.Cancelled() && errors.Is(err, context.Canceled):
		said = &Failed{Code: "CANCELLED", Message: "stopped because of " + context.Cause(job.ctx).Error()}
	default:
		said = &Failed{Code: "INTERNAL", Message: err.Error()}
	}
	if said.Later != nil {
		fault = said.Later.fault()
	}
	return said
}

func (job *Job) fail(said *Failed) {
	failed := &pb.AttachRequest_Failed{
		Id: job.Id, Code: text(said.Code, 64), Message: text(said.Message, mostText), Retryable: said.Retryable,
	}
	if later := said.Later; later != nil {
		failed.Counts, failed.Scope = proto.Bool(!later.Uncounted), string(later.Scope)
		if later.After > 0 {
			// A part of a millisecond is one.
			failed.RetryAfterMs = proto.Uint64(uint64((later.After + time.Millisecond - 1) / time.Millisecond))
		}
	}
	job.say(&pb.AttachRequest{Message: &pb.AttachRequest_Failed_{Failed: failed}})
}

// heard is what a message says of a job that failed.
func heard(failed *pb.AttachRequest_Failed) *Failed {
	said := &Failed{Code: failed.Code, Message: failed.Message, Retryable: failed.Retryable}
	if failed.Counts != nil {
		after := time.Duration(failed.GetRetryAfterMs()) * time.Millisecond
		said.Later = &Later{after, Scope(failed.Scope), !failed.GetCounts(), failed.Message}
	}
	return said
}

// session is the jobs of one server: of a child, or of one call of Attach.
type session struct {
	ctx     context.Context
	worker  *Worker
	send    func(*pb.AttachRequest)
	sending sync.Mutex
	// Jobs that are not answered, by their ids, and their number.
	jobs sync.Map
	held atomic.Int64
	// Has a value after the jobs of any server changed.
	others  chan struct{}
	running sync.WaitGroup
}

func newSession(ctx context.Context, worker *Worker, send func(*pb.AttachRequest)) *session {
	return &session{ctx: ctx, worker: worker, send: send, others: make(chan struct{}, 1)}
}

// hold counts a job that came, or was answered.
func (its *session) hold(change int64) {
	its.held.Add(change)
	its.worker.held.Add(change)
	its.worker.sessions.Range(func(other, _ any) bool {
		select {
		case other.(*session).others <- struct{}{}:
		default:
		}
		return true
	})
}

// share tells the server how many slots the jobs of others have, whenever that changes, until the call ends.
func (session *session) share() {
	for told := int64(0); ; {
		if elsewhere := session.worker.held.Load() - session.held.Load(); elsewhere != told && elsewhere >= 0 {
			told = elsewhere
			slots := &pb.AttachRequest_Slots{Elsewhere: uint32(elsewhere)}
			session.sending.Lock()
			session.send(&pb.AttachRequest{Message: &pb.AttachRequest_Slots_{Slots: slots}})
			session.sending.Unlock()
		}
		select {
		case <-session.others:
		case <-session.ctx.Done():
			return
		}
	}
}

// say sends one message at a time, and nothing about a job after its answer.
func (job *Job) say(message *pb.AttachRequest) {
	session := job.session
	session.sending.Lock()
	defer session.sending.Unlock()
	if job.isAnswered {
		return
	}
	session.send(message)
	if message.GetDone() != nil || message.GetFailed() != nil {
		job.isAnswered = true
		session.jobs.Delete(job.Id)
		session.hold(-1)
		job.cancel(nil)
		session.running.Done()
	}
}

// receive takes a message of the server. It waits for nothing: a cancel comes through while all that is sent waits.
func (session *session) receive(message *pb.AttachResponse) {
	if run := message.GetRun(); run != nil {
		session.start(run)
	} else if taken := message.GetTaken(); taken != nil {
		session.taken(taken.Id)
	} else if cancel := message.GetCancel(); cancel != nil {
		session.cancel(cancel.Id, cancel.Reason)
	}
}

func (session *session) start(run *Run) {
	ctx := metadata.AppendToOutgoingContext(session.ctx, "x-request-id", run.RequestId)
	if run.Traceparent != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", run.Traceparent)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	end := time.Now().Add(time.Duration(run.BudgetMs) * time.Millisecond)
	job := &Job{Run: run, session: session, ctx: ctx, cancel: cancel, end: end, untaken: make(chan struct{}, untaken)}
	session.jobs.Store(run.Id, job)
	session.hold(1)
	session.running.Add(1)
	go session.worker.serve(job)
}

func (session *session) taken(id string) {
	if job, isOpen := session.jobs.Load(id); isOpen {
		select {
		case <-job.(*Job).untaken:
		default:
		}
	}
}

// cancel lets a handler stop and answer. A member of a batch has its answer at once: the batch goes on without it.
func (session *session) cancel(id, reason string) {
	found, isOpen := session.jobs.Load(id)
	if !isOpen {
		return
	}
	job := found.(*Job)
	job.cancel(errors.New(reason))
	if session.worker.kinds[job.Kind].batch != nil {
		go job.answer(nil, "", context.Canceled)
	}
}
