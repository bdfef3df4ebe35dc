// Subscribes by TLS with a user and a password, and goes on where it ended the last time.
//
//	go run . amqps://ann@gateway1:5671 'euronext.104?quality=0' ca.pem password.txt tag.txt
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/go-amqp"
)

const patience = 10 * time.Second

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	log.SetFlags(0)
	place, address, left := must(url.Parse(os.Args[1])), os.Args[2], -1
	ca, password, tagFile := must(os.ReadFile(os.Args[3])), must(os.ReadFile(os.Args[4])), os.Args[5]
	if len(os.Args) > 6 {
		left = must(strconv.Atoi(os.Args[6]))
	}
	if tag, err := os.ReadFile(tagFile); err == nil {
		joint := "?"
		if strings.Contains(address, "?") {
			joint = "&"
		}
		address += joint + "from=" + string(tag)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(ca)
	user := place.User.Username()
	background := context.Background()
	limited, cancel := context.WithTimeout(background, patience)
	defer cancel()
	conn, err := amqp.Dial(limited, "amqps://"+place.Host, &amqp.ConnOptions{
		TLSConfig: &tls.Config{RootCAs: trusted, ServerName: place.Hostname()},
		SASLType:  amqp.SASLTypePlain(user, strings.TrimSpace(string(password))),
	})
	if err != nil {
		log.Fatal("no connection: ", err)
	}
	session := must(conn.NewSession(limited, nil))
	receiver, err := session.NewReceiver(limited, address, &amqp.ReceiverOptions{
		Credit: 1000, RequestedSenderSettleMode: amqp.SenderSettleModeSettled.Ptr(),
	})
	if err != nil {
		log.Fatal("refused: ", err)
	}
	for ; left != 0; left-- {
		message, err := receiver.Receive(background, nil)
		if err != nil {
			log.Fatal("the link has ended: ", err)
		}
		tag := message.Properties.MessageID.([]byte) // day, feed, service, sequence number, message number
		fmt.Println("packet", binary.BigEndian.Uint16(tag[6:]), binary.BigEndian.Uint64(tag[8:]))
		if err := os.WriteFile(tagFile, []byte(hex.EncodeToString(tag)), 0o600); err != nil {
			log.Fatal(err) // written once the packet is dealt with
		}
	}
	conn.Close()
}
