package waterwheel

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// window is how many jobs of one SubmitMany are sent and not yet taken out of it. The server's own window is as large.
const window = 256

// Outcome is how one job of many ended: with a result or an error.
type Outcome struct {
	Job    *Job
	Result *Result
	Err    error
}

// SubmitMany runs many jobs on one call, and yields each with its outcome as it is known, once and in no order. It
// takes jobs from the sequence, in a goroutine, only as fast as the server and the loop take them. Jobs wait while the
// pool is full; those that are refused otherwise are sent again as by Submit. If the call breaks, another one goes on.
// A loop that ends early cancels the rest.
//
// The deadline of the context is that of all: a job that was not sent by then is [Missed], and has not started. So
// leave the loop over a sequence without an end. Without a deadline, each job has 30 s.
func (client *Client) SubmitMany(ctx context.Context, jobs iter.Seq[*Job]) iter.Seq[Outcome] {
	return func(yield func(Outcome) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		many, left := &many{client: client, ctx: ctx}, make(chan struct{})
		defer close(left)
		// There is room for the outcomes of as many jobs as there are places.
		places, outcomes := make(chan struct{}, window), make(chan Outcome, window)
		go func() {
			defer close(outcomes)
			var running sync.WaitGroup
			defer func() {
				running.Wait()
				many.leave(nil)
				many.calls.Wait()
			}()
			for job := range jobs {
				select {
				case places <- struct{}{}:
				case <-left:
					return
				}
				if errors.Is(ctx.Err(), context.DeadlineExceeded) {
					late := Details{Code: codes.DeadlineExceeded, Reason: "DEADLINE_EXCEEDED", cause: ctx.Err()}
					late.Message = "it was not sent before the deadline"
					outcomes <- Outcome{job, nil, &Missed{late, false}}
					continue
				}
				// The order of the sequence is that of the jobs.
				ended := many.send(job)
				running.Go(func() { outcomes <- many.end(job, ended) })
				if errors.Is(ctx.Err(), context.Canceled) {
					return
				}
			}
		}()
		for outcome := range outcomes {
			if !yield(outcome) {
				return
			}
			<-places
		}
	}
}

// many jobs, and the call that the next one is sent on.
type many struct {
	client *Client
	ctx    context.Context
	mutex  sync.Mutex
	call   *manyCall
	number int
	// Calls that have not ended.
	calls sync.WaitGroup
}

// manyCall is one call, with those who wait for its answers by their tags.
type manyCall struct {
	stream  grpc.BidiStreamingClient[pb.SubmitManyRequest, pb.SubmitManyResponse]
	waiting sync.Map
}

// end waits for the end of a job that was sent, and sends it again as Submit does.
func (many *many) end(job *Job, ended <-chan Outcome) (outcome Outcome) {
	ctx, cancel := bounded(many.ctx)
	defer cancel()
	_ = persist(ctx, many.client.runs(job), func() error {
		if ended == nil {
			ended = many.send(job)
		}
		outcome, ended = <-ended, nil
		return outcome.Err
	})
	return outcome
}

// send sends a job on the call, or on a new one. It waits while the server reads no more.
func (many *many) send(job *Job) <-chan Outcome {
	many.mutex.Lock()
	defer many.mutex.Unlock()
	ended := make(chan Outcome, 1)
	if many.call == nil {
		if err := many.open(); err != nil {
			ended <- Outcome{job, nil, err}
			return ended
		}
	}
	many.number++
	call, tag := many.call, strconv.Itoa(many.number)
	call.waiting.Store(tag, func(result *Result, err error) {
		if refused, isRefused := err.(*Refused); isRefused && refused.Code == codes.Unavailable {
			go many.leave(call) // Another server may be there.
		}
		ended <- Outcome{job, result, err}
	})
	// An error is that of the call, which its reader sees.
	_ = call.stream.Send(&pb.SubmitManyRequest{Tag: tag, Job: job})
	return ended
}

func (many *many) open() error {
	var server peer.Peer
	stream, err := many.client.pool.SubmitMany(many.ctx, grpc.Peer(&server))
	if err != nil {
		return classify(many.ctx, err, server.Addr != nil)
	}
	call := &manyCall{stream: stream}
	many.call = call
	many.calls.Go(func() {
		answer, err := stream.Recv()
		for ; err == nil; answer, err = stream.Recv() {
			end, _ := call.waiting.LoadAndDelete(answer.Tag)
			end.(func(*Result, error))(answer.GetResult(), ofFailure(answer.GetFailure()))
		}
		many.leave(call)
		failure := classify(many.ctx, err, server.Addr != nil)
		call.waiting.Range(func(_, end any) bool {
			end.(func(*Result, error))(nil, failure)
			return true
		})
	})
	return nil
}

// leave sends no more on a call; without one, on that which there is.
func (many *many) leave(call *manyCall) {
	many.mutex.Lock()
	defer many.mutex.Unlock()
	if many.call != nil && (call == nil || call == many.call) {
		_ = many.call.stream.CloseSend()
		many.call = nil
	}
}
