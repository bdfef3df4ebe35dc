//! A stock fe2o3-amqp client of a stream and of the node's durable queue `orders`: what it does, it
//! tells on stdout, one JSON object a line. Argument: the node's port.

use std::error::Error;
use std::fmt::Write;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::messaging::{AmqpValue, Data, Message, MessageId, Outcome, Properties};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};

const PACKETS: u32 = 40;
const CREDIT: u32 = 5;
const ORDERS: u32 = 10;

type Failure = Box<dyn Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let port = std::env::args()
        .nth(1)
        .ok_or("the node's port is missing")?;
    let url = format!("amqp://127.0.0.1:{port}");
    let mut connection: ConnectionHandle<()> = Connection::open("fe2o3", url.as_str()).await?;
    let mut session = Session::begin(&mut connection).await?;
    subscribe(&mut session).await?;
    put(&mut session).await?;
    take(&mut session).await?;
    ask(&url).await?;
    session.end().await?;
    connection.close().await?;
    println!(r#"{{"event": "closed"}}"#);
    Ok(())
}

/// Receives with credit that it gives by hand; all of it once, and the rest when told to.
async fn subscribe(session: &mut SessionHandle<()>) -> Result<(), Failure> {
    let mut receiver = attach(session, "feed", "euronext.104?quality=0").await?;
    receiver.set_credit(CREDIT).await?;
    println!(r#"{{"event": "subscribed"}}"#);
    for place in 0..PACKETS {
        if place == CREDIT {
            // AMQP answers in order: what follows this answer was not sent before.
            attach(session, "echo", "euronext.999")
                .await?
                .close()
                .await?;
            println!(r#"{{"event": "used"}}"#);
            std::io::stdin().read_line(&mut String::new())?;
            receiver.set_credit(PACKETS).await?;
        }
        let delivery = receiver.recv::<Data>().await?;
        tell_message(delivery.message())?;
        receiver.accept(&delivery).await?;
    }
    Ok(receiver.close().await?)
}

async fn put(session: &mut SessionHandle<()>) -> Result<(), Failure> {
    let mut sender = Sender::attach(session, "put", "queue.orders").await?;
    let mut outcome = None;
    for number in 0..ORDERS {
        let id = format!("rust-{number}");
        let message = Message::builder()
            .properties(Properties::builder().message_id(id).build())
            .value(format!("order {number}"))
            .build();
        outcome = Some(sender.send(message).await?);
    }
    let accepted = matches!(outcome, Some(Outcome::Accepted(_)));
    println!(
        r#"{{"event": "put", "outcome": "{}"}}"#,
        if accepted { "Accepted" } else { "?" }
    );
    Ok(sender.close().await?)
}

/// Takes the queue's messages; the first one it releases once.
async fn take(session: &mut SessionHandle<()>) -> Result<(), Failure> {
    let mut receiver = attach(session, "take", "queue.orders").await?;
    receiver.set_credit(1).await?;
    for count in 0..=ORDERS {
        let delivery = receiver.recv::<AmqpValue<String>>().await?;
        let event = if count == 0 { "left" } else { "taken" };
        println!(r#"{{"event": "{event}", "body": {:?}}}"#, delivery.body().0);
        if count == 0 {
            receiver.release(&delivery).await?;
            receiver.set_credit(ORDERS).await?;
        } else {
            receiver.accept(&delivery).await?;
        }
    }
    Ok(receiver.close().await?)
}

/// Asks for what there is not, each on a connection of its own: where a link is refused,
/// fe2o3-amqp 0.18 may detach it twice, and AMQP has a connection end by that.
async fn ask(url: &str) -> Result<(), Failure> {
    for what in ["unknown source", "producer to a stream"] {
        let mut connection = Connection::open("fe2o3 asks", url).await?;
        let mut session = Session::begin(&mut connection).await?;
        let answer = if what == "unknown source" {
            attach(&mut session, "nothing", "queue.nothing").await.err()
        } else {
            let sender = Sender::attach(&mut session, "up", "euronext.104").await;
            sender.err().map(Failure::from)
        };
        let answer = answer.map_or(String::new(), |error| format!("{error:?}"));
        println!(r#"{{"event": "refused", "what": "{what}", "answer": {answer:?}}}"#);
        let _ = connection.close().await;
    }
    Ok(())
}

/// Attaches a receiver that has no credit yet.
async fn attach(
    session: &mut SessionHandle<()>,
    name: &str,
    address: &str,
) -> Result<Receiver, Failure> {
    let builder = Receiver::builder().name(name).source(address);
    Ok(builder
        .credit_mode(CreditMode::Manual)
        .attach(session)
        .await?)
}

fn tell_message(message: &Message<Data>) -> Result<(), Failure> {
    let properties = message.properties.as_ref().ok_or("no properties")?;
    let Some(MessageId::Binary(id)) = &properties.message_id else {
        return Err("no binary message-id".into());
    };
    println!(
        r#"{{"event": "message", "link": "feed", "subject": {:?}, "id": "{}", "content": {:?}, "number": {}, "hex": "{}"}}"#,
        properties.subject.as_deref().unwrap_or(""),
        hex(id),
        properties
            .content_type
            .as_ref()
            .map_or("", |symbol| symbol.as_str()),
        properties.group_sequence.unwrap_or(0),
        hex(&message.body.0),
    );
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}
