package clients

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// everyday is a server as many will run it.
const everyday = `
pool.cpu.workers = 2
kind.sha256 = { pool = "cpu", builtin = "sha256" }
kind.gzip = { pool = "cpu", builtin = "gzip" }
kind.sleep = { pool = "io", builtin = "sleep" }
kind.echo = { pool = "io", builtin = "echo" }
[pool.io]
workers = 8
when_full = "wait"
`

// bytesOfAllValues is a payload that is no text.
func bytesOfAllValues(length int) []byte {
	payload := make([]byte, length)
	for i := range payload {
		payload[i] = byte(i)
	}
	return payload
}

func TestSubmitReturnsTheBytesTheirTypeAndWhereTheBudgetWent(t *testing.T) {
	client := start(t, everyday).client()
	payload := bytesOfAllValues(100_000)
	const budget = 10 * time.Second
	response, err := client.Submit(deadline(t, budget), &pb.SubmitRequest{Job: &pb.Job{
		Kind: "echo", Payload: payload, ContentType: "image/png",
	}})
	if err != nil {
		t.Fatal(err)
	}
	result := response.Result
	if !bytes.Equal(result.Output, payload) || result.ContentType != "image/png" || result.JobId == "" {
		t.Errorf("got %d bytes of %q from job %q", len(result.Output), result.ContentType, result.JobId)
	}
	w := result.Waterfall
	given, left := w.BudgetSeconds, w.LeftSeconds
	if given > budget.Seconds() || given < budget.Seconds()/2 || left <= 0 {
		t.Errorf("of %v arrived %v s, and %v s are left", budget, given, left)
	}
	if spent := w.QueueSeconds + w.RunSeconds; spent <= 0 || spent+left > given+1e-6 {
		t.Errorf("%v s spent and %v s left of %v s", spent, left, given)
	}
}

// events reads a stream to its end.
func events(t *testing.T, client pb.WorkerPoolServiceClient, job *pb.Job) ([]*pb.StreamResponse, error) {
	t.Helper()
	stream, err := client.Stream(within(t), &pb.StreamRequest{Job: job})
	if err != nil {
		return nil, err
	}
	var events []*pb.StreamResponse
	for {
		event, err := stream.Recv()
		if err == io.EOF {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		events = append(events, event)
	}
}

func TestStreamOfGzipGunzipsToTheSameBytes(t *testing.T) {
	client := start(t, everyday).client()
	payload := make([]byte, 3<<20)
	rand.NewChaCha8([32]byte{7}).Read(payload)
	events, err := events(t, client, &pb.Job{Kind: "gzip", Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	chunks := 0
	for i, event := range events {
		if event.Sequence != uint64(i+1) {
			t.Fatalf("event %d has sequence %d", i+1, event.Sequence)
		}
		started, finished := event.GetStarted() != nil, event.GetFinished() != nil
		if started != (i == 0) || finished != (i == len(events)-1) {
			t.Fatalf("event %d of %d is %v", i+1, len(events), event)
		}
		if chunk := event.GetOutputChunk(); chunk != nil {
			packed.Write(chunk.Data)
			chunks++
		}
	}
	first, last := events[0].GetStarted(), events[len(events)-1].GetFinished()
	if first.JobId == "" || first.JobId != last.JobId || first.Worker != last.Waterfall.Worker {
		t.Errorf("started as %v, finished as %v", first, last)
	}
	if last.OutputBytes != uint64(packed.Len()) || last.ContentType != "application/gzip" || chunks < 10 {
		t.Errorf("%d chunks with %d bytes, and %v", chunks, packed.Len(), last)
	}
	reader, err := gzip.NewReader(&packed)
	if err != nil {
		t.Fatal(err)
	}
	if unpacked, err := io.ReadAll(reader); err != nil || !bytes.Equal(unpacked, payload) {
		t.Errorf("gunzip gives %d bytes (%v) of %d", len(unpacked), err, len(payload))
	}
}

func TestStreamThatFailsEndsWithAStatusAfterItsEvents(t *testing.T) {
	client := start(t, everyday+`
[kind.nap]
pool = "io"
builtin = "sleep"
run_timeout = "300ms"
`).client()
	events, err := events(t, client, &pb.Job{Kind: "nap", Payload: []byte("60000")})
	info := check(t, err, codes.DeadlineExceeded, "RUN_TIMEOUT")
	if len(events) == 0 || events[0].GetStarted().GetJobId() != info.Metadata["job"] {
		t.Errorf("%v after %v", info, events)
	}
}

// tiny is a server with room for two jobs at a time.
const tiny = `
kind.echo = { pool = "tiny", builtin = "echo" }
kind.sleep = { pool = "tiny", builtin = "sleep" }
[server]
max_payload = "1MiB"
[pool.tiny]
workers = 1
queue = { jobs = 1 }
when_full = "reject"
`

// submitMany sends all requests while it reads, and returns the ends by tag.
func submitMany(t *testing.T, client pb.WorkerPoolServiceClient, requests []*pb.SubmitManyRequest) map[string]*pb.SubmitManyResponse {
	t.Helper()
	call, err := client.SubmitMany(within(t))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for _, request := range requests {
			if call.Send(request) != nil {
				return // Recv tells why.
			}
		}
		call.CloseSend()
	}()
	ends := map[string]*pb.SubmitManyResponse{}
	for {
		response, err := call.Recv()
		if err == io.EOF {
			return ends
		}
		if err != nil {
			t.Fatal(err)
		}
		if ends[response.Tag] != nil {
			t.Fatalf("tag %q was answered twice", response.Tag)
		}
		ends[response.Tag] = response
	}
}

func TestSubmitManyAnswersEachOf500JobsOnceAndRefusesNone(t *testing.T) {
	client := start(t, tiny).client()
	var requests []*pb.SubmitManyRequest
	for i := range 500 {
		tag := fmt.Sprintf("job-%d", i)
		requests = append(requests, &pb.SubmitManyRequest{Tag: tag, Job: &pb.Job{Kind: "echo", Payload: []byte("of " + tag)}})
	}
	// A few that take their time, so that the pool is full.
	for i := 0; i < 500; i += 100 {
		requests[i].Job = &pb.Job{Kind: "sleep", Payload: []byte("50")}
	}
	ends := submitMany(t, client, requests)
	if len(ends) != len(requests) {
		t.Errorf("%d of %d jobs were answered", len(ends), len(requests))
	}
	for i, request := range requests {
		expected := "of " + request.Tag
		if i%100 == 0 {
			expected = "slept 50 ms"
		}
		if end := ends[request.Tag]; string(end.GetResult().GetOutput()) != expected {
			t.Errorf("%s: %v", request.Tag, end)
		}
	}
	if stats := pool(t, client, "tiny"); stats.Jobs.Completed != 500 || len(stats.Jobs.Rejected) != 0 {
		t.Errorf("%v", stats.Jobs)
	}
}
