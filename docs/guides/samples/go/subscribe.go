// Subscribes to the gateway with go-amqp and prints what comes.
//
//	go run . amqp://127.0.0.1:5672 'euronext.104?types=230'
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
)

const (
	credit      = 1000 // messages on their way at most; go-amqp tops it up by itself
	headerBytes = 16   // of UTP-MD's packet header
	patience    = 10 * time.Second
)

// order tells an order update (type 230) by its fields' offsets.
func order(message []byte) string {
	number := func(at int) uint32 { return binary.BigEndian.Uint32(message[at:]) }
	price := float64(number(16)) / math.Pow10(int(message[47]))
	return fmt.Sprintf("order %d %c %c %d @ %v", number(4), message[46], message[44], number(24), price)
}

// printPacket tells a packet's header, and its messages: each begins with its size less 2, and its
// type.
func printPacket(body []byte) {
	messages := int(body[15])
	fmt.Printf("packet %d %d: %d messages, %d bytes\n", binary.BigEndian.Uint16(body[12:]),
		binary.BigEndian.Uint32(body[4:]), messages, binary.BigEndian.Uint16(body))
	at := headerBytes
	for range messages {
		size := int(binary.BigEndian.Uint16(body[at:])) + 2
		if binary.BigEndian.Uint16(body[at+2:]) == 230 {
			fmt.Println(" ", order(body[at:at+size]))
		}
		at += size
	}
}

func printQuality(body []byte) {
	var told struct {
		Service       int
		State, Reason string
	}
	if err := json.Unmarshal(body, &told); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("quality %d %s: %s\n", told.Service, told.State, told.Reason)
}

func main() {
	log.SetFlags(0)
	url, address, left := os.Args[1], os.Args[2], -1
	if len(os.Args) > 3 {
		left, _ = strconv.Atoi(os.Args[3])
	}
	background := context.Background()
	limited, cancel := context.WithTimeout(background, patience)
	defer cancel()
	conn, err := amqp.Dial(limited, url, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	if err != nil {
		log.Fatal("no connection: ", err)
	}
	session, err := conn.NewSession(limited, nil)
	if err != nil {
		log.Fatal(err)
	}
	// Settled: a market's data is not given back.
	receiver, err := session.NewReceiver(limited, address, &amqp.ReceiverOptions{
		Credit: credit, RequestedSenderSettleMode: amqp.SenderSettleModeSettled.Ptr(),
	})
	if err != nil {
		log.Fatal("refused: ", err)
	}
	for next := uint32(0); left != 0; next++ {
		message, err := receiver.Receive(background, nil)
		if err != nil {
			log.Fatal("the link has ended: ", err)
		}
		if number := *message.Properties.GroupSequence; number != next { // thinning leaves no gap
			log.Fatalf("%d messages were lost", number-next)
		}
		if strings.HasSuffix(*message.Properties.ContentType, ".quality+json") {
			printQuality(message.GetData())
		} else {
			printPacket(message.GetData())
		}
		left--
	}
	conn.Close()
}
