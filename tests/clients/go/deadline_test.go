package clients

import (
	"strconv"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// impatient is a server with one worker. It answers 50 ms early: on a busy machine the default of 10 ms would measure
// the machine.
const impatient = `
[deadline]
reply_margin = "50ms"
[pool.one]
workers = 1
[kind.sleep]
pool = "one"
builtin = "sleep"
`

func TestDeadlineExceededArrivesWithItsDetailsBeforeTheOwnTimer(t *testing.T) {
	client := start(t, impatient).client()
	pool(t, client, "one") // connects
	const calls, budget = 10, 600 * time.Millisecond
	told := 0
	for range calls {
		var trailers metadata.MD
		_, err := client.Submit(deadline(t, budget), submission("sleep", "60000"), grpc.Trailer(&trailers))
		// The client's own timer knows no details.
		info, ok := detail[*errdetails.ErrorInfo](err)
		if !ok {
			t.Logf("the own timer was first: %v", err)
			continue
		}
		check(t, err, codes.DeadlineExceeded, "RUN_TIMEOUT")
		run, _ := strconv.ParseFloat(info.Metadata["run_ms"], 64)
		if info.Metadata["execution"] != "STARTED" || run < 300 ||
			info.Metadata["kind"] != "sleep" || info.Metadata["pool"] != "one" ||
			pushback(t, trailers) != -1 {
			t.Errorf("%v %v", info, trailers)
		}
		told++
	}
	if told < calls-1 {
		t.Errorf("%d of %d calls were told why they ended", told, calls)
	}
}

func TestJobThatDoesNotStartInTimeSaysSo(t *testing.T) {
	client := start(t, impatient).client()
	busy := background(within(t), client, "sleep", "2000")
	eventually(t, "the worker is busy", func() bool { return pool(t, client, "one").InFlight == 1 })
	_, err := client.Submit(within(t), &pb.SubmitRequest{Job: &pb.Job{
		Kind: "sleep", Payload: []byte("1"), QueueTimeout: durationpb.New(300 * time.Millisecond),
	}})
	info := check(t, err, codes.DeadlineExceeded, "EXPIRED_IN_QUEUE")
	if info.Metadata["execution"] != "NOT_STARTED" {
		t.Errorf("%v", info)
	}
	if err := await(t, busy); err != nil {
		t.Error(err)
	}
}

func TestJobThatCannotStartInTimeIsRefusedAtOnce(t *testing.T) {
	client := start(t, impatient).client()
	// From now on the server knows how long these jobs run.
	if err := await(t, background(within(t), client, "sleep", "1000")); err != nil {
		t.Fatal(err)
	}
	busy := background(within(t), client, "sleep", "1000")
	eventually(t, "the worker is busy", func() bool { return pool(t, client, "one").InFlight == 1 })
	begin := time.Now()
	_, err := client.Submit(deadline(t, 600*time.Millisecond), submission("sleep", "1000"))
	info := check(t, err, codes.ResourceExhausted, "DEADLINE_UNREACHABLE")
	if took := time.Since(begin); took > 500*time.Millisecond {
		t.Errorf("refused after %v", took)
	}
	needed, _ := strconv.ParseFloat(info.Metadata["needed_budget_ms"], 64)
	if info.Metadata["execution"] != "NOT_STARTED" || needed < 600 {
		t.Errorf("%v", info)
	}
	if err := await(t, busy); err != nil {
		t.Error(err)
	}
}
