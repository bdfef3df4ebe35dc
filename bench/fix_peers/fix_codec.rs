//! Messages a second that fix-codec-rs decodes, BodyLength and CheckSum checked, no dictionary.
//!
//! fix_codec MESSAGES SECONDS; MESSAGES has each message behind its size, a little-endian u32.
//! Prints how many messages were read, how many were refused, and the seconds that took.

use fix_codec_rs::decoder::Decoder;
use std::time::Instant;

fn main() {
    let given: Vec<String> = std::env::args().collect();
    let data = std::fs::read(&given[1]).unwrap();
    let wanted: f64 = given[2].parse().unwrap();
    let mut messages: Vec<&[u8]> = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let size = u32::from_le_bytes(data[at..at + 4].try_into().unwrap()) as usize;
        messages.push(&data[at + 4..at + 4 + size]);
        at += 4 + size;
    }
    let (mut count, mut refused, mut took, mut fields) = (0u64, 0u64, 0.0, 0usize);
    let mut decoder = Decoder::new();
    let began = Instant::now();
    while took < wanted {
        for each in &messages {
            match decoder.decode(each) {
                Ok(message) => {
                    if message.validate_body_length().is_err()
                        || message.validate_checksum().is_err()
                    {
                        refused += 1;
                    }
                    fields += message.fields().count();
                }
                Err(_) => refused += 1,
            }
        }
        count += messages.len() as u64;
        took = began.elapsed().as_secs_f64();
    }
    std::hint::black_box(fields);
    println!("{count} {refused} {took}");
}
