package waterwheel

import (
	"context"
	"iter"
	"strconv"
	"sync"
	"sync/atomic"

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

// SubmitMany runs many jobs on one call, and yields the outcome of each as it is known, in no order. It takes jobs from the
// sequence, in a goroutine, only as fast as the server and the loop take them: the sequence may have no end. Jobs wait while
// the pool is full; those that are refused otherwise are sent again as by Submit. If the call breaks, another one goes on. A
// loop that ends early cancels the rest. The deadline of the context is that of all jobs, and then no more are taken; without
// one, each has the server's.
func (client *Client) SubmitMany(ctx context.Context, jobs iter.Seq[*Job]) iter.Seq[Outcome] {
	return func(yield func(Outcome) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		many := &many{client: client, ctx: ctx, places: make(chan struct{}, window)}
		many.outcomes, many.queue = make(chan Outcome, window), make(chan member, window)
		go many.take(jobs)
		go many.send()
		for outcome := range many.outcomes {
			if !yield(outcome) {
				return
			}
			<-many.places
		}
	}
}

// many has room in its channels for as many jobs as there are places: only that for a place waits.
type many struct {
	client   *Client
	ctx      context.Context
	places   chan struct{}
	queue    chan member
	outcomes chan Outcome
	// Jobs without an outcome, and calls that have not ended.
	jobs, calls sync.WaitGroup
}

type member struct {
	job   *Job
	tries *tries
}

func (many *many) take(jobs iter.Seq[*Job]) {
	defer close(many.queue)
	defer many.jobs.Wait()
	for job := range jobs {
		select {
		case many.places <- struct{}{}:
		case <-many.ctx.Done():
			return
		}
		many.jobs.Add(1)
		many.queue <- member{job, &tries{mayRepeat: many.client.mayRepeat(job)}}
	}
}

// send sends on one call, until that ends or another server may be better.
func (many *many) send() {
	defer close(many.outcomes)
	defer many.calls.Wait()
	var call *manyCall
	number := 0
	for its := range many.queue {
		if call == nil || call.isLeft.Load() {
			call.leave()
			call = many.open()
		}
		number++
		tag := strconv.Itoa(number)
		call.pending.Store(tag, its)
		if call.stream != nil {
			// An error is that of the call, which its reader sees.
			_ = call.stream.Send(&pb.SubmitManyRequest{Tag: tag, Job: its.job})
		}
		if call.hasEnded.Load() {
			many.fail(call)
		}
	}
	call.leave()
}

// manyCall is one call, with the jobs that it has not answered by their tags.
type manyCall struct {
	stream           grpc.BidiStreamingClient[pb.SubmitManyRequest, pb.SubmitManyResponse]
	pending          sync.Map
	isLeft, hasEnded atomic.Bool
	end              error
}

func (many *many) open() *manyCall {
	server := &peer.Peer{}
	stream, err := many.client.pool.SubmitMany(many.ctx, grpc.Peer(server))
	call := &manyCall{stream: stream}
	many.calls.Go(func() {
		for err == nil {
			var answer *pb.SubmitManyResponse
			if answer, err = stream.Recv(); err == nil {
				many.receive(call, answer)
			}
		}
		call.end = classify(many.ctx, err, server.Addr != nil)
		call.isLeft.Store(true)
		call.hasEnded.Store(true)
		many.fail(call)
	})
	return call
}

// leave sends no more.
func (call *manyCall) leave() {
	if call != nil && call.stream != nil {
		_ = call.stream.CloseSend()
	}
}

func (many *many) receive(call *manyCall, answer *pb.SubmitManyResponse) {
	its, _ := call.pending.LoadAndDelete(answer.Tag)
	failure := answer.GetFailure()
	if failure == nil {
		many.settle(its.(member), answer.GetResult(), nil)
		return
	}
	err := ofFailure(failure)
	if refused, isRefused := err.(*Refused); isRefused && refused.Code == codes.Unavailable {
		call.isLeft.Store(true) // Another server may be there.
	}
	many.settle(its.(member), nil, err)
}

// fail settles what a call that has ended did not answer.
func (many *many) fail(call *manyCall) {
	call.pending.Range(func(tag, _ any) bool {
		if its, isOpen := call.pending.LoadAndDelete(tag); isOpen {
			many.settle(its.(member), nil, call.end)
		}
		return true
	})
}

// settle passes on how a job ended, or sends it again.
func (many *many) settle(its member, result *Result, err error) {
	go func() {
		if err != nil && its.tries.another(many.ctx, err) {
			many.queue <- its
			return
		}
		many.outcomes <- Outcome{its.job, result, err}
		many.jobs.Done()
	}()
}
