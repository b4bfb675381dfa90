package clients

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// directory is a name with several addresses, which change: a DNS server that answers as a cluster does for a headless
// Service.
type directory struct {
	socket    net.PacketConn
	mutex     sync.Mutex
	addresses []string
}

// name starts the server, which lasts as long as the test.
func name(t *testing.T) *directory {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &directory{socket: socket}
	t.Cleanup(func() { socket.Close() })
	go n.serve()
	return n
}

// target is what a channel is opened to.
func (n *directory) target(port string) string {
	return fmt.Sprintf("dns://%s/waterwheel.test:%s", n.socket.LocalAddr(), port)
}

func (n *directory) change(change func(addresses []string) []string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.addresses = change(slices.Clone(n.addresses))
}

func (n *directory) serve() {
	buffer := make([]byte, 4096)
	for {
		size, asker, err := n.socket.ReadFrom(buffer)
		if err != nil {
			return
		}
		if answer, err := n.answer(buffer[:size]); err == nil {
			n.socket.WriteTo(answer, asker)
		}
	}
}

func (n *directory) answer(query []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	answer := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, RecursionAvailable: true},
		Questions: []dnsmessage.Question{question},
	}
	if question.Type == dnsmessage.TypeA && strings.HasPrefix(question.Name.String(), "waterwheel.test.") {
		n.change(func(addresses []string) []string {
			for _, address := range addresses {
				answer.Answers = append(answer.Answers, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: question.Class},
					Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(address).To4())},
				})
			}
			return addresses
		})
	}
	return answer.Pack()
}

// ownAddress is the number-th address of the loopback network that no other process uses.
func ownAddress(number int) string {
	process := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+process/256%250, process%256, 2+number)
}

// freePort is a port that nobody has at an address.
func freePort(t *testing.T, address string) string {
	t.Helper()
	listener, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}
