// Package clients checks a real waterwheel server with google.golang.org/grpc and stubs made from proto/.
package clients

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// patience bounds every wait for something that must happen; a busy machine needs most of it.
const patience = 20 * time.Second

// server is a waterwheel process with its own configuration and ports.
type server struct {
	t            *testing.T
	process      *exec.Cmd
	address, ops string
	lines        chan string
}

// receipt is the last line on the server's standard output.
type receipt struct {
	Event    string `json:"event"`
	Finished uint64 `json:"finished"`
	Lost     []struct {
		Job       string `json:"job"`
		RequestID string `json:"request_id"`
		Kind      string `json:"kind"`
		Pool      string `json:"pool"`
		While     string `json:"while"`
	} `json:"lost"`
}

var announcement = regexp.MustCompile(`^grpc (\S+) .*ops (?:http://)?(\S+) `)

// serviceConfig is the service config of deploy/, changed.
func serviceConfig(t *testing.T, change func(map[string]any)) string {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/service-config.json")
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	change(config)
	if text, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// binary is the program under test.
func binary() string {
	return cmp.Or(os.Getenv("WATERWHEEL_BIN"), "../../../target/debug/waterwheel")
}

// start runs a server with the given configuration, and flags that go before it, until the test ends.
func start(t *testing.T, config string, flags ...string) *server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "waterwheel.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(flags) == 0 {
		flags = []string{"--listen", "127.0.0.1:0"}
	}
	flags = append([]string{"serve", "--config", file, "--ops-listen", "127.0.0.1:0", "--set", "telemetry.log=warn"}, flags...)
	process := exec.Command(binary(), flags...)
	var stderr bytes.Buffer
	process.Stderr = &stderr
	stdout, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, process: process, lines: make(chan string, 16)}
	go func() {
		defer close(s.lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			s.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		if process.ProcessState == nil {
			process.Process.Kill()
			process.Wait()
		}
		if t.Failed() {
			t.Logf("log of the server:\n%s", stderr.String())
		}
	})
	found := announcement.FindStringSubmatch(s.line())
	if found == nil {
		process.Wait()
		t.Fatalf("the server did not start:\n%s", stderr.String())
	}
	s.address, s.ops = found[1], found[2]
	return s
}

func (s *server) line() string {
	select {
	case line := <-s.lines:
		return line
	case <-time.After(patience):
		return "nothing"
	}
}

// terminate asks for the drain, as an orchestrator does.
func (s *server) terminate() {
	s.t.Helper()
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
}

// end waits until the server is gone and returns its receipt and its exit code.
func (s *server) end() (receipt, int) {
	s.t.Helper()
	var r receipt
	line := s.line()
	if err := json.Unmarshal([]byte(line), &r); err != nil || r.Event != "drained" {
		s.t.Fatalf("no receipt: %q", line)
	}
	var exit *exec.ExitError
	if err := s.process.Wait(); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return r, s.process.ProcessState.ExitCode()
}

var plaintext = grpc.WithTransportCredentials(insecure.NewCredentials())

// connect opens a connection of its own.
func connect(t *testing.T, target string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient(target, append(options, plaintext)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

// client is a stub on a connection of its own.
func (s *server) client() pb.WorkerPoolServiceClient {
	return pb.NewWorkerPoolServiceClient(connect(s.t, s.address))
}

// pool returns the figures of one pool.
func pool(t *testing.T, client pb.WorkerPoolServiceClient, name string) *pb.PoolStats {
	t.Helper()
	response, err := client.Stats(within(t), &pb.StatsRequest{Pool: name})
	if err != nil {
		t.Fatal(err)
	}
	return response.Stats.Pools[0]
}

// rejected returns how often a pool refused jobs for one reason.
func rejected(stats *pb.PoolStats, reason string) uint64 {
	i := slices.IndexFunc(stats.Jobs.Rejected, func(r *pb.RejectedCount) bool { return r.Reason == reason })
	if i < 0 {
		return 0
	}
	return stats.Jobs.Rejected[i].Count
}

// within is the context of a call that should not take long.
func within(t *testing.T) context.Context {
	return deadline(t, patience)
}

// deadline is the context of a call that must end in time.
func deadline(t *testing.T, budget time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until the condition holds, and says how long that took.
func eventually(t *testing.T, what string, condition func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !condition() {
		if time.Since(begin) > patience {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(begin)
}

func submission(kind, payload string) *pb.SubmitRequest {
	return &pb.SubmitRequest{Job: &pb.Job{Kind: kind, Payload: []byte(payload)}}
}

// background submits a job and returns where its end will be.
func background(ctx context.Context, client pb.WorkerPoolServiceClient, kind, payload string) <-chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := client.Submit(ctx, submission(kind, payload))
		ended <- err
	}()
	return ended
}

// await returns how a job in the background ended.
func await(t *testing.T, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		t.Fatal("the call did not end")
		return nil
	}
}

// detail finds a detail of one type among those that an error carries.
func detail[T any](err error) (found T, ok bool) {
	for _, each := range status.Convert(err).Details() {
		if found, ok = each.(T); ok {
			return found, true
		}
	}
	return found, false
}

// check fails the test unless the error has the code, and an ErrorInfo of ours with the reason, which it returns.
func check(t *testing.T, err error, code codes.Code, reason string) *errdetails.ErrorInfo {
	t.Helper()
	info, ok := detail[*errdetails.ErrorInfo](err)
	if !ok || status.Code(err) != code || info.Reason != reason || info.Domain != "waterwheel.dev" {
		t.Fatalf("expected %v/%s, got %v (%v)", code, reason, err, info)
	}
	return info
}

// pushback is what the trailers say of retries: milliseconds, negative for none.
func pushback(t *testing.T, trailers metadata.MD) int {
	t.Helper()
	values := trailers.Get("grpc-retry-pushback-ms")
	if len(values) != 1 {
		t.Fatalf("pushback in %v", trailers)
	}
	millis, err := strconv.Atoi(values[0])
	if err != nil {
		t.Fatal(err)
	}
	return millis
}
