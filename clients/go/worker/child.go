package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"

	"google.golang.org/protobuf/encoding/protojson"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// runChild speaks the protocol of docs/workers.md: a line of JSON, then as many bytes as its `bytes` says.
func (worker *Worker) runChild(ctx context.Context, requests io.Reader, responses io.Writer) error {
	var session *session
	session = newSession(context.Background(), worker, func(message *pb.AttachRequest) {
		// If the server is gone, the requests end, too.
		_, _ = responses.Write(line(message))
		session.taken(message.GetOutput().GetId())
	})
	ready := map[string]any{"protocol": 1, "kinds": worker.names(), "name": worker.Name}
	hello, err := json.Marshal(map[string]any{"ready": ready})
	if err != nil {
		return err
	}
	if _, err := responses.Write(append(hello, '\n')); err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- session.read(bufio.NewReader(requests), ended) }()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-ended:
		return err
	}
}

// read returns at the end of the requests. After `leave`, it ends the session with the last answer.
func (session *session) read(requests *bufio.Reader, ended chan<- error) error {
	for {
		line, err := requests.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var size struct{ Bytes int }
		message := &pb.AttachResponse{}
		reading := protojson.UnmarshalOptions{DiscardUnknown: true}
		if err := errors.Join(json.Unmarshal(line, &size), reading.Unmarshal(line, message)); err != nil {
			return fmt.Errorf("a message that cannot be read: %w", err)
		}
		payload := make([]byte, size.Bytes)
		if _, err := io.ReadFull(requests, payload); err != nil {
			return err
		}
		if run := message.GetRun(); run != nil {
			run.Payload = payload
		}
		session.receive(message)
		if message.GetLeave() != nil {
			go func() {
				session.running.Wait()
				ended <- nil
			}()
		}
	}
}

// line is a message as a child writes it.
func line(message *pb.AttachRequest) []byte {
	var data []byte
	if output := message.GetOutput(); output != nil {
		data, output.Data = output.Data, nil
	} else if done := message.GetDone(); done != nil {
		data, done.Data = done.Data, nil
	}
	header, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
	if err != nil {
		panic(err) // All texts are UTF-8.
	}
	line := fmt.Appendf(nil, `{"bytes":%d,%s`, len(data), header[1:])
	return append(append(line, '\n'), data...)
}

// isPipe says whether a descriptor is one of the two that a server gives to its child. It makes no file of it: the
// collector would close that.
func isPipe(descriptor int) bool {
	var info syscall.Stat_t
	return syscall.Fstat(descriptor, &info) == nil && info.Mode&syscall.S_IFMT == syscall.S_IFIFO
}
