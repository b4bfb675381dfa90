package waterwheel

import (
	"context"
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

// SubmitMany runs many jobs, and yields the outcome of each as it is known, in no order. It takes jobs from the sequence,
// in a goroutine, only as fast as the server and the loop take them: the sequence may have no end. Jobs wait while the
// pool is full; those that are refused otherwise are sent again as by Submit. A loop that ends early cancels the rest.
// The deadline of the context is
// that of all jobs, and then no more are taken; without one, each has the server's.
func (client *Client) SubmitMany(ctx context.Context, jobs iter.Seq[*Job]) iter.Seq[Outcome] {
	return func(yield func(Outcome) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		many := &many{client: client, ctx: ctx, pending: map[string]*Job{}}
		many.places, many.outcomes = make(chan struct{}, window), make(chan Outcome, window)
		go many.run(jobs)
		for outcome := range many.outcomes {
			if !yield(outcome) {
				return
			}
			<-many.places
		}
	}
}

type many struct {
	client     *Client
	ctx        context.Context
	places     chan struct{}
	outcomes   chan Outcome
	unanswered sync.WaitGroup
	mutex      sync.Mutex
	// Jobs that were sent, by their tags.
	pending map[string]*Job
	// How the call ended: Submit sends the jobs that follow.
	end error
}

func (many *many) run(jobs iter.Seq[*Job]) {
	defer close(many.outcomes)
	defer many.unanswered.Wait()
	var server peer.Peer
	call, err := many.client.pool.SubmitMany(many.ctx, grpc.Peer(&server))
	if err != nil {
		many.end = classify(many.ctx, err, server.Addr != nil)
	} else {
		go many.receive(call, &server)
		defer call.CloseSend()
	}
	number := 0
	for job := range jobs {
		select {
		case many.places <- struct{}{}:
		case <-many.ctx.Done():
			return
		}
		number++
		tag := strconv.Itoa(number)
		many.unanswered.Add(1)
		many.mutex.Lock()
		end := many.end
		if end == nil {
			many.pending[tag] = job
		}
		many.mutex.Unlock()
		if end != nil {
			many.settle(job, nil, &Refused{Details: Details{Code: codes.Unavailable, Reason: "UNREACHABLE", Message: end.Error(), cause: end}})
			continue
		}
		// An error is that of the call, which its reader sees.
		_ = call.Send(&pb.SubmitManyRequest{Tag: tag, Job: job})
	}
}

func (many *many) receive(call grpc.BidiStreamingClient[pb.SubmitManyRequest, pb.SubmitManyResponse], server *peer.Peer) {
	for {
		answer, err := call.Recv()
		many.mutex.Lock()
		if err != nil {
			many.end = classify(many.ctx, err, server.Addr != nil)
			many.mutex.Unlock()
			for _, job := range many.pending {
				many.settle(job, nil, many.end)
			}
			return
		}
		job := many.pending[answer.Tag]
		delete(many.pending, answer.Tag)
		many.mutex.Unlock()
		if failure := answer.GetFailure(); failure != nil {
			err = ofFailure(failure)
		}
		many.settle(job, answer.GetResult(), err)
	}
}

// settle passes on how a job ended, or lets Submit try it again.
func (many *many) settle(job *Job, result *Result, err error) {
	go func() {
		tries := tries{mayRepeat: many.client.mayRepeat(job)}
		if err != nil && tries.another(many.ctx, err) {
			result, err = many.client.Submit(many.ctx, job)
		}
		many.outcomes <- Outcome{job, result, err}
		many.unanswered.Done()
	}()
}
