// A stock go-amqp client that does what the test tells it on stdin and tells on stdout what
// happened. The words are in tests/support/foreign_clients.py.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/Azure/go-amqp"
)

const patience = 20 * time.Second

type order struct {
	Do       string
	Port     int
	MaxFrame uint32 `json:"max_frame"`
	IdleMs   int    `json:"idle_ms"`
	Link     string
	Address  string
	Settled  bool
	Session  string
	Name     string
	Selector string
	Count    uint32
	Place    int
	What     string
}

type event map[string]any

type receiver struct {
	*amqp.Receiver
	mutex    sync.Mutex
	messages []*amqp.Message
}

var (
	telling   sync.Mutex
	socket    *net.TCPConn
	conn      *amqp.Conn
	sessions  = map[string]*amqp.Session{}
	receivers = map[string]*receiver{}
)

func tell(name string, more event) {
	telling.Lock()
	defer telling.Unlock()
	line := event{"event": name}
	for key, value := range more {
		line[key] = value
	}
	text, _ := json.Marshal(line)
	fmt.Println(string(text))
}

// reason takes the peer's condition out of whatever error the library wraps it in.
func reason(err error) event {
	var said *amqp.Error
	var link *amqp.LinkError
	var session *amqp.SessionError
	var connection *amqp.ConnError
	switch {
	case errors.As(err, &link):
		said = link.RemoteErr
	case errors.As(err, &session):
		said = session.RemoteErr
	case errors.As(err, &connection):
		said = connection.RemoteErr
	default:
		errors.As(err, &said)
	}
	if said == nil {
		return event{"condition": "", "description": ""}
	}
	return event{"condition": string(said.Condition), "description": said.Description}
}

func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func connect(o order) {
	ctx, cancel := limited()
	defer cancel()
	raw, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", o.Port))
	if err != nil {
		tell("failed", event{"description": err.Error()})
		return
	}
	socket = raw.(*net.TCPConn)
	options := &amqp.ConnOptions{
		ContainerID: "go client", HostName: "127.0.0.1", SASLType: amqp.SASLTypeAnonymous(),
		MaxFrameSize: o.MaxFrame, IdleTimeout: time.Duration(o.IdleMs) * time.Millisecond,
	}
	conn, err = amqp.NewConn(ctx, raw, options)
	if err != nil {
		tell("failed", event{"description": err.Error()})
		return
	}
	tell("opened", nil)
	go func() {
		<-conn.Done()
		err := conn.Err()
		tell("closed", reason(err))
		tell("disconnected", nil)
	}()
}

func sessionOf(name string) *amqp.Session {
	if sessions[name] == nil {
		ctx, cancel := limited()
		defer cancel()
		session, err := conn.NewSession(ctx, nil)
		if err != nil {
			tell("failed", event{"description": err.Error()})
			return nil
		}
		sessions[name] = session
	}
	return sessions[name]
}

func attach(o order, dynamic bool) {
	ctx, cancel := limited()
	defer cancel()
	mode := amqp.SenderSettleModeUnsettled
	if o.Settled {
		mode = amqp.SenderSettleModeSettled
	}
	options := &amqp.ReceiverOptions{
		Credit: -1, Name: o.Name, RequestedSenderSettleMode: &mode, DynamicAddress: dynamic,
	}
	if o.Selector != "" {
		options.Filters = []amqp.LinkFilter{amqp.NewSelectorFilter(o.Selector)}
	}
	made, err := sessionOf(o.Session).NewReceiver(ctx, o.Address, options)
	if err != nil {
		said := reason(err)
		said["link"] = o.Link
		said["error"] = err.Error()
		tell("detached", said)
		return
	}
	filters := []string{}
	const selector = "apache.org:selector-filter:string"
	if made.LinkSourceFilterValue(selector) != nil {
		filters = append(filters, selector)
	}
	tell("attached", event{
		"link": o.Link, "address": made.Address(), "filter": filters, "settled": o.Settled,
	})
	mine := &receiver{Receiver: made}
	receivers[o.Link] = mine
	go mine.receive(o.Link)
}

func (r *receiver) receive(link string) {
	for {
		message, err := r.Receive(context.Background(), nil)
		if err != nil {
			said := reason(err)
			said["link"] = link
			tell("detached", said)
			return
		}
		r.take(link, message)
	}
}

func (r *receiver) take(link string, message *amqp.Message) {
	r.mutex.Lock()
	r.messages = append(r.messages, message)
	r.mutex.Unlock()
	properties := message.Properties
	tell("message", event{
		"link": link, "subject": *properties.Subject, "content": *properties.ContentType,
		"id":     hex.EncodeToString(properties.MessageID.([]byte)),
		"number": *properties.GroupSequence,
		"body":   base64.StdEncoding.EncodeToString(message.GetData()),
	})
}

func sender(o order) {
	ctx, cancel := limited()
	defer cancel()
	_, err := sessionOf(o.Session).NewSender(ctx, o.Address, nil)
	if err != nil {
		said := reason(err)
		said["link"] = o.Link
		tell("detached", said)
		return
	}
	tell("attached", event{"link": o.Link})
}

func outcome(o order) {
	ctx, cancel := limited()
	defer cancel()
	r := receivers[o.Link]
	r.mutex.Lock()
	message := r.messages[o.Place]
	r.mutex.Unlock()
	var err error
	switch o.What {
	case "accept":
		err = r.AcceptMessage(ctx, message)
	case "reject":
		err = r.RejectMessage(ctx, message, &amqp.Error{Condition: amqp.ErrCondInternalError, Description: "no"})
	case "release":
		err = r.ReleaseMessage(ctx, message)
	case "modify":
		err = r.ModifyMessage(ctx, message, &amqp.ModifyMessageOptions{DeliveryFailed: true, UndeliverableHere: true})
	}
	if err != nil {
		tell("failed", event{"description": err.Error()})
	}
}

func obey(o order) {
	ctx, cancel := limited()
	defer cancel()
	var err error
	switch o.Do {
	case "connect":
		connect(o)
	case "attach":
		attach(o, false)
	case "dynamic":
		attach(o, true)
	case "sender":
		sender(o)
	case "credit":
		err = receivers[o.Link].IssueCredit(o.Count)
	case "drain":
		err = receivers[o.Link].DrainCredit(ctx, nil)
		if err == nil {
			tell("drained", event{"link": o.Link})
		}
	case "outcome":
		outcome(o)
	case "detach":
		err = receivers[o.Link].Close(ctx)
	case "end":
		err = sessions[o.Session].Close(ctx)
		if err == nil {
			tell("ended", event{"session": o.Session})
		}
	case "close":
		err = conn.Close()
	case "reset":
		err = socket.SetLinger(0)
		socket.Close()
		tell("gone", nil)
	}
	if err != nil {
		tell("failed", event{"description": err.Error()})
	}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			tell("failed", event{"description": err.Error()})
			continue
		}
		obey(o)
	}
}
