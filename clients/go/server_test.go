package waterwheel_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"google.golang.org/grpc"

	waterwheel "waterwheel.dev/go"
	pb "waterwheel.dev/go/waterwheel/v1"
)

// patience bounds every wait for something that must happen; a busy machine needs most of it.
const patience = 20 * time.Second

// binary is the program under test.
func binary() string { return cmp.Or(os.Getenv("WATERWHEEL_BIN"), "../../target/debug/waterwheel") }

// server is a process with its own configuration and ports.
type server struct {
	process *exec.Cmd
	address string
}

var announcement = regexp.MustCompile(`^grpc (\S+) `)

// start runs a server until the test ends.
func start(t *testing.T, config, listen string) *server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "waterwheel.toml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	process := exec.Command(binary(), "serve", "--config", file, "--listen", listen, "--ops-listen", "127.0.0.1:0",
		"--set", "telemetry.log=warn", "--set", "drain.notice=0s")
	var log bytes.Buffer
	process.Stderr = &log
	stdout, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	server := &server{process: process}
	t.Cleanup(func() {
		server.kill()
		if t.Failed() {
			t.Logf("log of the server:\n%s", log.String())
		}
	})
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	found := announcement.FindStringSubmatch(line)
	if found == nil {
		t.Fatalf("the server did not start: %s", line)
	}
	server.address = found[1]
	return server
}

func (server *server) kill() {
	_ = server.process.Process.Kill()
	_ = server.process.Wait()
}

// serve is a client of a server of its own.
func serve(t *testing.T, config string) (*waterwheel.Client, *server) {
	t.Helper()
	server := start(t, config, "127.0.0.1:0")
	return dial(t, server.address, waterwheel.Options{}), server
}

func dial(t *testing.T, address string, options waterwheel.Options) *waterwheel.Client {
	t.Helper()
	client, err := waterwheel.NewClient(address, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func within(t *testing.T, time time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time)
	t.Cleanup(cancel)
	return ctx
}

// as is the error of one type, without which the test ends.
func as[E error](t *testing.T, err error) (found E) {
	t.Helper()
	if !errors.As(err, &found) {
		t.Fatalf("%T was expected, not %T: %v", found, err, err)
	}
	return found
}

// figures are those of the only pool.
func figures(t *testing.T, client *waterwheel.Client) *pb.PoolStats {
	t.Helper()
	calls := pb.NewWorkerPoolServiceClient(client.Connection())
	answer, err := calls.Stats(within(t, patience), &pb.StatsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return answer.Stats.Pools[0]
}

// held are the jobs that run or wait in the only pool.
func held(t *testing.T, client *waterwheel.Client) uint64 {
	pool := figures(t, client)
	return uint64(pool.InFlight) + pool.Queue.Jobs
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for begin := time.Now(); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Since(begin) > patience {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
