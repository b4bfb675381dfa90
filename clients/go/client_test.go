package waterwheel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	waterwheel "waterwheel.dev/go"
	pb "waterwheel.dev/go/waterwheel/v1"
)

const one = `
[pool.one]
workers = 1
queue = { jobs = 1 }
when_full = "reject"
[kind.echo]
pool = "one"
builtin = "echo"
[kind.rare]
pool = "one"
builtin = "echo"
limit = { rate = 0.01 }
[kind.gzip]
pool = "one"
builtin = "gzip"
[kind.sleep]
pool = "one"
builtin = "sleep"
[kind.sad]
pool = "one"
exec = ["/bin/sh", "-c", "echo out of paint >&2; exit 3"]
exit_codes = { "3" = "FAILED_PRECONDITION" }
[kind.crash]
pool = "one"
exec = ["/bin/sh", "-c", "kill -9 $$"]
[store]
memory = true
`

func job(kind, payload string) *waterwheel.Job {
	return &waterwheel.Job{Kind: kind, Payload: []byte(payload)}
}

func TestEachClassOfErrors(t *testing.T) {
	client, server := serve(t, one)
	result, err := client.Submit(context.Background(), job("echo", "hello"))
	if err != nil || string(result.Output) != "hello" || result.Waterfall.GetBudgetSeconds() < 29 {
		t.Fatal(result, err)
	}
	_, err = client.Submit(within(t, patience), job("nothing", ""))
	refused := as[*waterwheel.Refused](t, err)
	if refused.Reason != "UNKNOWN_KIND" || refused.RetryAfter != 0 || refused.Message != "unknown kind" {
		t.Error(refused)
	}
	// The text has the reason, what is wrong, and what to do.
	if !strings.HasPrefix(refused.Help, "name a kind") || refused.Error() != "UNKNOWN_KIND: unknown kind ("+refused.Help+")" {
		t.Error(refused)
	}
	long := &waterwheel.Job{Kind: "sleep", Payload: []byte("60000"), RunTimeout: durationpb.New(200 * time.Millisecond)}
	_, err = client.Submit(within(t, patience), long)
	if missed := as[*waterwheel.Missed](t, err); missed.Reason != "RUN_TIMEOUT" || !missed.Started {
		t.Error(missed)
	}
	_, err = client.Submit(within(t, patience), job("sad", ""))
	failed := as[*waterwheel.Failed](t, err)
	if failed.Code != codes.FailedPrecondition || failed.Reason != "HANDLER_FAILED" || strings.TrimSpace(failed.Stderr) != "out of paint" {
		t.Errorf("%+v", failed)
	}
	_, err = client.Submit(within(t, patience), job("crash", ""))
	if lost := as[*waterwheel.Lost](t, err); lost.Reason != "WORKER_CRASHED" || !lost.Started {
		t.Error(lost)
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err = client.Submit(ctx, job("sleep", "60000")); err != context.Canceled {
		t.Error(err)
	}
	server.kill()
	_, err = dial(t, server.address, waterwheel.Options{}).Submit(within(t, time.Second), job("echo", ""))
	if refused := as[*waterwheel.Refused](t, err); refused.Reason != "UNREACHABLE" || !strings.Contains(refused.Message, "refused") {
		t.Error(refused)
	}
}

func TestARefusalIsTriedAgainWithinOneDeadline(t *testing.T) {
	client, _ := serve(t, one)
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := client.Submit(within(t, patience), job("sleep", "1000"))
			ended <- err
		}()
	}
	eventually(t, "the pool is full", func() bool { return held(t, client) == 2 })
	if _, err := client.Submit(within(t, patience), job("echo", "")); err != nil {
		t.Error(err)
	}
	if len(figures(t, client).Jobs.Rejected) == 0 {
		t.Error("it was not refused")
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if _, err := client.Submit(within(t, patience), job("rare", "")); err != nil {
		t.Error(err)
	}
	// There is no time for another try: the refusal is the error, at once, and not a deadline.
	begin := time.Now()
	_, err := client.Submit(within(t, patience), job("rare", ""))
	refused := as[*waterwheel.Refused](t, err)
	if refused.Reason != "LIMIT_EXCEEDED" || refused.RetryAfter < patience || time.Since(begin) > patience/2 {
		t.Error(refused, refused.RetryAfter)
	}
}

func TestALostJobIsTriedAgainOnlyIfItMayRunTwice(t *testing.T) {
	client, server := serve(t, one)
	patient := dial(t, server.address, waterwheel.Options{Idempotent: []string{"sleep"}})
	lost, done := make(chan error), make(chan error)
	go func() {
		_, err := client.Submit(within(t, patience), job("sleep", "1500"))
		lost <- err
	}()
	eventually(t, "it runs", func() bool { return held(t, client) == 1 })
	go func() {
		_, err := patient.Submit(within(t, patience), job("sleep", "1500"))
		done <- err
	}()
	eventually(t, "the other one waits", func() bool { return held(t, client) == 2 })
	server.kill()
	if lost := as[*waterwheel.Lost](t, <-lost); lost.Started || lost.Reason != "UNAVAILABLE" {
		t.Error(lost)
	}
	start(t, one, server.address)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestStream(t *testing.T) {
	client, _ := serve(t, one)
	data := bytes.Repeat([]byte("hello "), 100_000)
	pieces, progress := 0, 0
	var finished *pb.Finished
	for event, err := range client.Stream(within(t, patience), &waterwheel.Job{Kind: "gzip", Payload: data}) {
		if err != nil {
			t.Fatal(err)
		}
		pieces += min(len(event.Output), 1)
		if event.Progress != nil {
			progress++
		}
		finished = event.Finished
	}
	if pieces == 0 || progress == 0 || finished.GetOutputBytes() == 0 {
		t.Error(pieces, progress, finished)
	}
	for range client.Stream(within(t, patience), job("gzip", strings.Repeat("hello ", 600_000))) {
		break
	}
	eventually(t, "the job is cancelled", func() bool { return held(t, client) == 0 })
	for _, err := range client.Stream(within(t, patience), job("sad", "")) {
		as[*waterwheel.Failed](t, err)
	}
}

func TestSubmitManyTakesJobsAsTheyAreDone(t *testing.T) {
	client, _ := serve(t, one)
	var taken atomic.Int32
	ended, ids := map[string]int{}, make([]uint64, 1000)
	jobs := func(yield func(*waterwheel.Job) bool) {
		for number := range 1000 {
			taken.Add(1)
			if !yield(job("echo", fmt.Sprint(number))) {
				return
			}
		}
	}
	for outcome := range client.SubmitMany(within(t, patience), jobs) {
		if outcome.Err != nil || string(outcome.Result.Output) != string(outcome.Job.Payload) {
			t.Fatal(outcome)
		}
		ended[string(outcome.Result.Output)]++
		number, _ := strconv.Atoi(string(outcome.Result.Output))
		_, id, _ := strings.Cut(outcome.Result.JobId, "-")
		ids[number], _ = strconv.ParseUint(id, 16, 64)
	}
	if ids[0] == 0 || !slices.IsSorted(ids) {
		t.Error("they are sent in another order", ids)
	}
	if taken.Load() != 1000 || len(ended) != 1000 {
		t.Errorf("%d taken, %d ended", taken.Load(), len(ended))
	}
	endless := func(yield func(*waterwheel.Job) bool) {
		for taken.Store(0); yield(job("sleep", "1")); taken.Add(1) {
		}
	}
	for outcome := range client.SubmitMany(within(t, patience), endless) {
		if outcome.Err != nil {
			t.Error(outcome.Err)
		}
		// The first ends when few have been taken, whatever their number.
		if taken.Load() > 300 {
			t.Errorf("%d are taken", taken.Load())
		}
		break
	}
	eventually(t, "the others are cancelled", func() bool { return held(t, client) == 0 })
}

func of(jobs ...*waterwheel.Job) iter.Seq[*waterwheel.Job] {
	return func(yield func(*waterwheel.Job) bool) {
		for _, job := range jobs {
			if !yield(job) {
				return
			}
		}
	}
}

func TestEachOfManyHasItsOwnError(t *testing.T) {
	client, _ := serve(t, one)
	for outcome := range client.SubmitMany(within(t, patience), of(job("echo", "a"), job("sad", ""), job("nothing", ""))) {
		switch outcome.Job.Kind {
		case "echo":
			if outcome.Err != nil {
				t.Error(outcome.Err)
			}
		case "sad":
			as[*waterwheel.Failed](t, outcome.Err)
		case "nothing":
			as[*waterwheel.Refused](t, outcome.Err)
		}
	}
}

func TestManyGoOnAfterTheirServer(t *testing.T) {
	_, server := serve(t, one)
	client := dial(t, server.address, waterwheel.Options{Idempotent: []string{"gzip"}})
	ends := map[string]error{}
	for outcome := range client.SubmitMany(within(t, patience), func(yield func(*waterwheel.Job) bool) {
		yield(job("sleep", "60000"))
		yield(job("gzip", "x"))
		eventually(t, "one runs and one waits", func() bool { return held(t, client) == 2 })
		server.kill()
		start(t, one, server.address)
		yield(job("echo", ""))
	}) {
		ends[outcome.Job.Kind] = outcome.Err
	}
	// The first one may have run; the others go on by another call.
	if as[*waterwheel.Lost](t, ends["sleep"]); len(ends) != 3 || ends["gzip"] != nil || ends["echo"] != nil {
		t.Error(ends)
	}
}

func TestTheDeadlineOfManyIsTheirsTogether(t *testing.T) {
	client, _ := serve(t, one)
	ctx := within(t, 2*time.Second)
	ends := map[string][]error{}
	for outcome := range client.SubmitMany(ctx, func(yield func(*waterwheel.Job) bool) {
		yield(job("echo", ""))
		for range 2 {
			yield(job("sleep", "60000"))
		}
		<-ctx.Done()
		for range 3 {
			yield(job("gzip", ""))
		}
	}) {
		ends[outcome.Job.Kind] = append(ends[outcome.Job.Kind], outcome.Err)
	}
	if len(ends["echo"]) != 1 || ends["echo"][0] != nil || len(ends["sleep"]) != 2 || len(ends["gzip"]) != 3 {
		t.Error(ends)
	}
	for _, err := range ends["sleep"] {
		as[*waterwheel.Missed](t, err)
	}
	for _, err := range ends["gzip"] {
		if missed := as[*waterwheel.Missed](t, err); missed.Started {
			t.Error("it was not sent", missed)
		}
	}
}

func TestOneOfManyThatIsRefusedIsSentAgain(t *testing.T) {
	client, _ := serve(t, one)
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := client.Submit(within(t, patience), job("sleep", "1000"))
			ended <- err
		}()
	}
	eventually(t, "the pool is full", func() bool { return held(t, client) == 2 })
	full := job("echo", "x")
	full.WhenFull = pb.WhenFull_WHEN_FULL_REJECT
	for outcome := range client.SubmitMany(within(t, patience), of(full, job("nothing", ""))) {
		if outcome.Job == full && outcome.Err != nil {
			t.Error(outcome.Err)
		} else if outcome.Job != full {
			as[*waterwheel.Refused](t, outcome.Err)
		}
	}
	if len(figures(t, client).Jobs.Rejected) == 0 {
		t.Error("it was not refused")
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestDetachedJobs(t *testing.T) {
	client, _ := serve(t, one)
	ctx := within(t, patience)
	for round := range 2 {
		created, err := client.Create(ctx, "order-4711", job("echo", "hello"), nil)
		if err != nil || created.AlreadyExisted != (round == 1) {
			t.Fatal(created, err)
		}
	}
	done, err := client.Detached("order-4711").Wait(ctx)
	if err != nil || string(done.Output) != "hello" {
		t.Error(done, err)
	}
	retry := &waterwheel.JobOptions{Retry: &pb.RetryPolicy{MaxAttempts: 1}}
	sad, err := client.Create(ctx, "", job("sad", ""), retry)
	if err != nil {
		t.Fatal(err)
	}
	_, err = sad.Wait(ctx)
	if failed := as[*waterwheel.Failed](t, err); failed.Code != codes.FailedPrecondition || failed.Stderr == "" {
		t.Errorf("%+v", failed)
	}
	hour := &waterwheel.JobOptions{Start: &pb.JobOptions_Delay{Delay: durationpb.New(time.Hour)}}
	later, err := client.Create(ctx, "", job("echo", ""), hour)
	if err != nil {
		t.Fatal(err)
	}
	if waiting, err := later.Wait(within(t, 200*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(waiting, err)
	}
	if state, err := later.Cancel(ctx); state != pb.JobState_JOB_STATE_CANCELLED || err != nil {
		t.Error(state, err)
	}
	_, err = later.Wait(ctx)
	if refused := as[*waterwheel.Refused](t, err); refused.Reason != "CANCELLED" {
		t.Error(refused)
	}
	_, err = client.Detached("unknown").Get(ctx)
	as[*waterwheel.Refused](t, err)
	last := pb.JobState_JOB_STATE_UNSPECIFIED
	for event, err := range client.Detached("order-4711").Watch(ctx) {
		if err != nil {
			t.Error(err)
		}
		last = event.GetJob().GetState()
	}
	if last != pb.JobState_JOB_STATE_SUCCEEDED {
		t.Error(last)
	}
}
