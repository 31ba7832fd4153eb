//! Walks over the segments of the log, oldest first, and has every batch carried out that something
//! proves durable.

use super::log_batch::{LogScan, apply_view, follow, lose};
use super::segment_reader::{After, LOOKS_MAX, SegmentReader, next_batch};
use super::tolerant_read::{newer, read};
use crate::device::Device;
use crate::error::OpenError;
use crate::state::State;
use atoll_format::checksum::crc;
use atoll_format::log::{
    BatchHead, Footer, FooterBuilder, LogError, LogKind, SegmentHeader, decode_batch, peek_batch,
};
use atoll_format::units::{BLOCK, BLOCK_LEN};
use atoll_world::{Buf, World, mutant, sometimes};
use std::collections::BTreeMap;

pub(super) async fn replay_log<W: World>(
    device: &Device<W>,
    state: &mut State,
    scan: &mut LogScan,
) -> Result<(), OpenError> {
    let salt = state.geometry.salt;
    // Which segment lies at each place of the ring.
    let mut headers: BTreeMap<u64, SegmentHeader> = BTreeMap::new();
    for place in 0..state.geometry.log.segments {
        let at = state.geometry.log.at + place * state.geometry.log.segment_len;
        let Some(block) = read(device, at, BLOCK).await? else { continue };
        match SegmentHeader::decode(&block, at, salt) {
            Ok(h) if h.segment % state.geometry.log.segments == place => {
                headers.insert(h.segment, h);
            }
            Ok(_) | Err(LogError::Nothing | LogError::Damaged) => {}
            Err(e) => return Err(newer(e).expect("the other variants are above")),
        }
    }
    let oldest = state.log.trim_below();
    let newest = headers.keys().next_back().copied().unwrap_or(0).max(oldest);
    if newest >= oldest + state.geometry.log.segments {
        return Err(OpenError::Metadata("the log has more segments than places".into()));
    }
    scan.journal_to = headers.values().map(|h| h.journal_to).max().unwrap_or(0);
    scan.generation = headers.values().map(|h| h.generation).max().unwrap_or(0);
    // A segment is begun when what was written before it is durable.
    let begun = headers.values().map(|h| h.first_batch.saturating_sub(1)).max().unwrap_or(0);
    scan.log_to = scan.log_to.max(begun);
    let mut expected = headers.get(&oldest).map(|h| h.first_batch);
    let mut segment = oldest;
    loop {
        state.log.begin_replay(segment);
        if let Some(h) = headers.get(&segment) {
            scan.life = scan.life.max(h.generation);
            if expected.is_some_and(|e| e != h.first_batch) {
                lose(scan, format!("batches before {} are missing", h.first_batch));
            }
            expected = Some(h.first_batch);
        } else if segment < newest {
            scan.damage.push(format!("the header of segment {segment} is unreadable"));
        }
        let is_last = segment >= newest;
        let sealed = if is_last {
            false
        } else {
            let next = headers.get(&(segment + 1)).map(|h| h.first_batch);
            replay_sealed(device, state, scan, segment, next, &mut expected).await?
        };
        if !sealed {
            if !is_last {
                sometimes!("store.recover.no_footer");
            }
            replay_open(device, state, scan, segment, &mut expected).await?;
        }
        if is_last {
            // A segment whose header was lost may still follow.
            let next = segment + 1;
            let room = next - oldest < state.geometry.log.segments;
            if !room || !has_batches(device, state, next, scan.end()).await? {
                break;
            }
            scan.damage.push(format!("the header of segment {next} is unreadable"));
        }
        segment += 1;
        scan.footer = FooterBuilder::default();
        state.log.replayed_to(segment, BLOCK);
    }
    let first = headers.get(&oldest).map_or(1, |h| h.first_batch);
    scan.last_seq = scan.last_seq.max(first.saturating_sub(1));
    if scan.last_seq < scan.log_to {
        let (last, to) = (scan.last_seq, scan.log_to);
        lose(scan, format!("the log ends at batch {last}, batch {to} was durable"));
        scan.last_seq = scan.log_to;
    }
    state.log.replayed_to(segment, state.log.head_offset());
    Ok(())
}

/// Applies a sealed segment from its footer; false if the footer is not usable. `next` is the first
/// batch of the segment behind it, if that is known.
async fn replay_sealed<W: World>(
    device: &Device<W>,
    state: &mut State,
    scan: &mut LogScan,
    segment: u64,
    next: Option<u64>,
    expected: &mut Option<u64>,
) -> Result<bool, OpenError> {
    let geometry = &state.geometry;
    let end = geometry.log.segment_at(segment) + geometry.log.segment_len;
    let salt = geometry.salt;
    let Some(last) = read(device, end - BLOCK, BLOCK).await? else { return Ok(false) };
    let footer = match Footer::decode(&last, end - BLOCK, salt) {
        Ok(f) if f.segment == segment => f,
        Ok(_) | Err(LogError::Nothing | LogError::Damaged) => return Ok(false),
        Err(e) => return Err(newer(e).expect("the other variants are above")),
    };
    let body_len = u64::from(footer.body_len).next_multiple_of(BLOCK);
    if body_len + 2 * BLOCK > geometry.log.segment_len {
        return Ok(false);
    }
    let body = if body_len == 0 {
        Some(Buf::zeros(0))
    } else {
        read(device, end - BLOCK - body_len, body_len).await?
    };
    let Some(body) = body else { return Ok(false) };
    let batches = match footer.batches(&body, salt) {
        Ok(batches) => batches,
        Err(e) => return newer(e).map_or(Ok(false), Err),
    };
    let begins = geometry.log.segment_at(segment) + BLOCK;
    for view in &batches {
        let head = &view.head;
        let inside = (begins..end).contains(&head.at)
            && head.at.is_multiple_of(BLOCK)
            && head.len_bytes() <= end - head.at;
        // One of an earlier opening describes batches that have been written over since.
        if head.segment != segment || head.generation < scan.life || !inside {
            return Ok(false);
        }
    }
    // After a crash while it was being written the log may have gone on in this segment, and have
    // begun the next before the footer was written again.
    let ends_at = batches.last().map(|view| view.head.seq + 1);
    if next.is_some() && next != ends_at {
        sometimes!("store.recover.old_footer");
        return Ok(false);
    }
    for view in batches {
        follow(scan, &view.head, expected);
        apply_view(state, scan, &view, None)?;
    }
    Ok(true)
}

/// Walks the batches of a segment by their headers.
async fn replay_open<W: World>(
    device: &Device<W>,
    state: &mut State,
    scan: &mut LogScan,
    segment: u64,
    expected: &mut Option<u64>,
) -> Result<(), OpenError> {
    let start = state.geometry.log.segment_at(segment);
    let end = start + state.geometry.log.segment_len;
    let salt = state.geometry.salt;
    let mut window = SegmentReader::new(device, start, end);
    let mut at = start + BLOCK;
    // A batch is applied when the next is found, which proves it durable; the last one, when its
    // payload matches.
    let mut held: Option<(BatchHead, Vec<u8>)> = None;
    let mut after = scan.end();
    let mut looks = 0;
    loop {
        let next = next_batch(&mut window, at, salt, segment, after).await?;
        let is_at_once = next.as_ref().is_some_and(|(head, _)| head.at == at);
        // What was not seen may have been acknowledged; and what this opening writes has its
        // generation.
        let may_follow = |block: &[u8]| {
            peek_batch(block, at, salt).is_ok_and(|head| after.may_precede(&head, segment))
        };
        if !is_at_once && looks < LOOKS_MAX && window.has_more_at(at, may_follow).await? {
            sometimes!("store.recover.read_of_another_place");
            looks += 1;
            continue;
        }
        let Some((head, batch)) = next else { break };
        after = After { seq: head.seq, generation: head.generation };
        if let Some(batch) = held.take() {
            accept(state, scan, batch, expected)?;
        }
        at = head.at + head.len_bytes();
        held = Some((head, batch));
    }
    if let Some((head, mut batch)) = held {
        let proven = scan.log_to.max(head.durable_to) >= head.seq;
        let mut whole = payload_matches(&head, &batch)?;
        if !whole && let Some(again) = read(device, head.at, head.len_bytes()).await? {
            let header = head.header_blocks as usize * BLOCK_LEN;
            whole = again[..header] == batch[..header] && payload_matches(&head, &again)?;
            if whole {
                batch = again.to_vec();
            }
        }
        if last_batch_counts(proven, whole) {
            accept(state, scan, (head, batch), expected)?;
        } else {
            sometimes!("store.recover.torn_batch");
            at = head.at;
        }
    }
    // What was torn was never acknowledged; what the device does not give may have been.
    let mut next = at..end.min(at + BLOCK);
    if !next.is_empty() {
        let first = window.bytes(at, BLOCK_LEN).await?;
        if let Ok(head) = peek_batch(&first, at, salt)
            && scan.end().may_precede(&head, segment)
        {
            next.end = end.min(at + head.len_bytes());
        }
    }
    if window.is_unreadable(next) {
        sometimes!("store.recover.end_unreadable");
        lose(scan, format!("behind batch {} the log cannot be read", scan.last_seq));
    }
    Ok(())
}

/// Whether the last batch of the log is believed: something proves it durable, or all of it is
/// there.
fn last_batch_counts(proven: bool, whole: bool) -> bool {
    if mutant!("recover.torn_batch_counts") {
        return true;
    }
    if mutant!("recover.last_batch_dropped") {
        return proven;
    }
    proven || whole
}

fn accept(
    state: &mut State,
    scan: &mut LogScan,
    (head, batch): (BatchHead, Vec<u8>),
    expected: &mut Option<u64>,
) -> Result<(), OpenError> {
    let header_len = head.header_blocks as usize * BLOCK_LEN;
    let view = decode_batch(&batch, head.at, head.salt)
        .map_err(|e| newer(e).unwrap_or(OpenError::Metadata("a log batch".into())))?;
    follow(scan, &head, expected);
    apply_view(state, scan, &view, Some(&batch[header_len..]))?;
    scan.footer.push(&head, &batch[..header_len]);
    let offset = head.at + head.len_bytes() - state.geometry.log.segment_at(head.segment);
    state.log.replayed_to(state.log.head_segment(), offset);
    Ok(())
}

fn payload_matches(head: &BatchHead, batch: &[u8]) -> Result<bool, OpenError> {
    let view = decode_batch(batch, head.at, head.salt)
        .map_err(|e| newer(e).unwrap_or(OpenError::Metadata("a log batch".into())))?;
    let payload = &batch[head.header_blocks as usize * BLOCK_LEN..];
    Ok(view.ops.iter().filter(|op| op.kind == LogKind::Write as u8).all(|op| {
        let from = op.payload_at.get() as usize * BLOCK_LEN;
        let len = usize::from(op.blocks.get()) * BLOCK_LEN;
        payload[from..from + len]
            .chunks_exact(BLOCK_LEN)
            .zip(view.crcs(op))
            .all(|(block, sum)| crc(block) == sum)
    }))
}

/// Whether a segment without a readable header has batches after `after`.
async fn has_batches<W: World>(
    device: &Device<W>,
    state: &State,
    segment: u64,
    after: After,
) -> Result<bool, OpenError> {
    // Its first batch lies right behind its header, and was written after it.
    let at = state.geometry.log.segment_at(segment) + BLOCK;
    let salt = state.geometry.salt;
    let Some(first) = read(device, at, BLOCK).await? else { return Ok(false) };
    let Ok(head) = peek_batch(&first, at, salt) else { return Ok(false) };
    if !after.may_precede(&head, segment) {
        return Ok(false);
    }
    let len = u64::from(head.header_blocks) * BLOCK;
    let Some(header) = read(device, at, len).await? else { return Ok(false) };
    Ok(decode_batch(&header, at, salt).is_ok())
}
