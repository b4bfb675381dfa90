// A worker that attaches with four slots: `malformed ADDRESS FOLDER`.
//
// It answers the jobs of the kind `echo`, and each job of the kind `do` by the messages in the file of the folder that the
// payload names, as they are. tests/it/malformed/attached.rs writes these files.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"log"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// raw sends bytes as they are, and reads messages.
type raw struct{}

func (raw) Marshal(message any) ([]byte, error) { return message.([]byte), nil }
func (raw) Unmarshal(data []byte, message any) error {
	return proto.Unmarshal(data, message.(proto.Message))
}
func (raw) Name() string { return "proto" }

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// field is that of an id, and an unknown one, so that both take as many bytes as the field of a placeholder.
func field(id string) []byte {
	rest := 6 - len(id)
	return []byte("\n" + string(rune(len(id))) + id + "z" + string(rune(rest)) + strings.Repeat("\x00", rest))
}

// messages are those of a case.
func messages(name, job, answered string) (all [][]byte) {
	data := must(os.ReadFile(filepath.Join(os.Args[2], name)))
	for letter, id := range map[string]string{"I": job, "O": answered} {
		data = bytes.ReplaceAll(data, []byte("\n\x08"+strings.Repeat(letter, 8)), field(id))
	}
	for len(data) > 0 {
		end := 4 + binary.BigEndian.Uint32(data)
		all = append(all, data[4:end])
		data = data[end:]
	}
	return all
}

// attach answers jobs until the call ends, which some cases are about.
func attach(channel *grpc.ClientConn) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	both := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	path := pb.WorkerService_Attach_FullMethodName
	stream, err := channel.NewStream(ctx, both, path, grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return
	}
	say := func(message *pb.AttachRequest) { stream.SendMsg(must(proto.Marshal(message))) }
	hello := &pb.AttachRequest_Hello{Kinds: []string{"do", "echo"}, Concurrency: 4}
	say(&pb.AttachRequest{Message: &pb.AttachRequest_Hello_{Hello: hello}})
	answered := "1"
	for {
		response := &pb.AttachResponse{}
		if stream.RecvMsg(response) != nil {
			return
		}
		run := response.GetRun()
		switch run.GetKind() {
		case "echo":
			answered = run.Id
			done := &pb.AttachRequest_Done{Id: run.Id, Data: run.Payload}
			say(&pb.AttachRequest{Message: &pb.AttachRequest_Done_{Done: done}})
		case "do":
			for _, message := range messages(string(run.Payload), run.Id, answered) {
				stream.SendMsg(message)
			}
		}
	}
}

func main() {
	channel := must(grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials())))
	for {
		attach(channel)
		time.Sleep(10 * time.Millisecond)
	}
}
