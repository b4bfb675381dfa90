package waterwheel

import (
	"cmp"
	"context"
	"crypto/rand"
	"iter"
	"math"
	"time"

	pb "waterwheel.dev/go/waterwheel/v1"
)

// JobOptions say when a detached job starts, how it is tried again, and how long it is kept.
type JobOptions = pb.JobOptions

// Detached is a job that outlives its calls. All calls about it are tried again, because they may be made twice.
type Detached struct {
	// ID names it on all servers that share its store.
	ID string
	// AlreadyExisted says that an earlier call had created it.
	AlreadyExisted bool
	client         *Client
}

// always is for calls that may be made again and again.
const always = math.MaxInt

// Create makes a detached job, and returns once it is durable. The same id is the same job; an empty one is replaced by
// a random one. The options may be nil.
func (client *Client) Create(ctx context.Context, id string, job *Job, options *JobOptions) (*Detached, error) {
	request := &pb.CreateJobRequest{Job: job, JobId: cmp.Or(id, rand.Text()), Options: options}
	answer, err := call(ctx, always, client.jobs.CreateJob, request)
	return &Detached{request.JobId, answer.GetAlreadyExisted(), client}, err
}

// Detached is a job that was created before.
func (client *Client) Detached(id string) *Detached { return &Detached{ID: id, client: client} }

// Get returns the job as it is.
func (detached *Detached) Get(ctx context.Context) (*pb.DetachedJob, error) {
	answer, err := call(ctx, always, detached.client.jobs.GetJob, &pb.GetJobRequest{JobId: detached.ID})
	return answer.GetJob(), err
}

// Cancel cancels the job. One that runs is asked to stop: its state is then still JOB_STATE_RUNNING.
func (detached *Detached) Cancel(ctx context.Context) (pb.JobState, error) {
	request := &pb.JobServiceCancelJobRequest{JobId: detached.ID}
	answer, err := call(ctx, always, detached.client.jobs.CancelJob, request)
	return answer.GetState(), err
}

// Wait returns the job at its end; its error is nil only if the job succeeded. Without a deadline it waits for ever. At
// the deadline it returns the job as it is, with context.DeadlineExceeded: the job goes on.
func (detached *Detached) Wait(ctx context.Context) (*pb.DetachedJob, error) {
	for {
		answer, err := call(ctx, always, detached.client.jobs.WaitJob, &pb.WaitJobRequest{JobId: detached.ID})
		job := answer.GetJob()
		_, isMissed := err.(*Missed)
		end, has := ctx.Deadline()
		switch {
		case err != nil && !isMissed:
			return job, err
		case job.GetState() == pb.JobState_JOB_STATE_SUCCEEDED:
			return job, nil
		case job.GetState() > pb.JobState_JOB_STATE_SUCCEEDED:
			return job, ofAttempt(job)
		case has && time.Until(end) < 100*time.Millisecond:
			// The server answers a little before the deadline of the call.
			<-ctx.Done()
			return job, ctx.Err()
		}
	}
}

// Watch yields the events of the job to its end, over broken connections; an error is the last.
func (detached *Detached) Watch(ctx context.Context) iter.Seq2[*pb.WatchJobResponse, error] {
	return func(yield func(*pb.WatchJobResponse, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		request, tries := &pb.WatchJobRequest{JobId: detached.ID}, tries{runs: always}
		err := follow(ctx, detached.client.jobs.WatchJob, request, func(event *pb.WatchJobResponse) bool {
			request.FromSequence = event.Sequence
			return yield(event, nil)
		}, func(failure error) bool { return tries.another(ctx, failure) })
		if err != nil {
			yield(nil, err)
		}
	}
}
