package worker

import (
	"context"
	"testing"
	"time"

	pb "waterwheel.dev/go/waterwheel/v1"
)

// A caller that is slow to read a long result holds up its own job alone.
func TestASlowReaderOfABatch(t *testing.T) {
	worker, said := &Worker{}, make(chan *pb.AttachRequest, 9)
	session := newSession(t.Context(), worker, func(message *pb.AttachRequest) { said <- message })
	batch := &batch{most: 2, came: make(chan *Job)}
	batch.handler = func(jobs []*Job) (results []Result, err error) {
		for _, job := range jobs {
			results = append(results, Result{Output: job.Payload})
		}
		return results, nil
	}
	give := func(id string, payload []byte) *Job {
		ctx, cancel := context.WithCancelCause(t.Context())
		run := &Run{Id: id, Payload: payload}
		// The server takes no piece until the test does.
		job := &Job{Run: run, session: session, ctx: ctx, cancel: cancel, end: time.Now().Add(time.Hour), untaken: make(chan struct{})}
		session.running.Add(1)
		go batch.add(job)
		return job
	}
	slow := give("slow", make([]byte, 2*piece))
	give("other", []byte("short"))
	if done := <-said; done.GetDone().GetId() != "other" {
		t.Fatal(done)
	}
	<-slow.untaken
	if output, done := <-said, <-said; output.GetOutput().GetId() != "slow" || done.GetDone().GetId() != "slow" {
		t.Fatal(output, done)
	}
}
