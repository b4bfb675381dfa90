package clients

import (
	"bytes"
	"compress/gzip"
	"io"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/codes"
	pb "waterwheel.dev/go/waterwheel/v1"
)

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
