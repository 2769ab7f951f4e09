//! A fabric of one's own: READs over a channel, to a thread that has the table.
//!
//! A fabric carries windows of slots, and says how long a GET may believe them. What is in them, and whether it
//! is whole, is checked by the reader. So this one needs neither locks nor care.

use oneread::fabric::{Direct, Fabric, ReadId, Stretch};
use oneread::internals::fabric::landed::LandedWindow;
use oneread::internals::get::Proof;
use oneread::internals::layout::geometry::Window;
use oneread::sink::Sink;
use oneread::{
    Config, Limits, PutMode, TableSize,
    embedded::{Clock, Index, Reader, Region},
    error::ReadError,
    layout::Geometry,
};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Asks for words of the region: the first, and how many. The answers come in the same order.
struct Channel<'g> {
    geometry: &'g Geometry,
    asks: Sender<(usize, usize)>,
    answers: Receiver<Vec<u64>>,
    posted: VecDeque<(ReadId, Window)>,
}

impl Direct for Channel<'_> {}

impl Fabric for Channel<'_> {
    type Landed<'a>
        = LandedWindow<'a>
    where
        Self: 'a;
    const EXACT: bool = false;
    type Mark = Instant;
    type Error = ReadError;

    fn credits(&self) -> usize {
        16
    }

    fn post(&mut self, reads: &[(ReadId, Window)]) -> Result<(), ReadError> {
        for &(id, window) in reads {
            let bytes = self.geometry.window_bytes(window) as usize;
            self.ask(self.geometry.slot_offset(window.first) as usize / 8, bytes / 8);
            self.posted.push_back((id, window));
        }
        Ok(())
    }

    fn poll(&mut self, mut take: impl FnMut(ReadId, &mut LandedWindow<'_>)) -> Result<(), ReadError> {
        if let Some((id, window)) = self.posted.pop_front() {
            take(id, &mut LandedWindow::new(self.geometry, window, &self.answer()));
        }
        Ok(())
    }

    fn mark(&mut self, _home: u64) -> Instant {
        Instant::now()
    }

    fn proof(&mut self, _home: u64, mark: Instant) -> Proof {
        Proof::by_clock(mark.elapsed().as_nanos() as u64, self.geometry.grace())
    }

    fn took_less(&mut self, mark: Instant, allowance: Duration) -> bool {
        mark.elapsed() < allowance
    }

    fn fetch(&mut self, stretches: &[Stretch], out: &mut impl Sink) -> Result<(), ReadError> {
        for &Stretch { offset, len } in stretches {
            let (first, skip) = (offset as usize / 8, offset as usize % 8);
            self.ask(first, (skip + len).div_ceil(8));
            let bytes: Vec<u8> = self.answer().iter().flat_map(|word| word.to_le_bytes()).collect();
            out.put(&bytes[skip..][..len]);
        }
        Ok(())
    }
}

impl Channel<'_> {
    fn ask(&self, first: usize, words: usize) {
        self.asks.send((first, words)).expect("the owner is there");
    }

    fn answer(&self) -> Vec<u64> {
        self.answers.recv().expect("the owner is there")
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config::new().size(TableSize::Slots(1000)).value_max(4096);
    let geometry = config.geometry()?;
    let region = Region::create(&oneread::Backing::Anonymous, geometry.region_bytes())?;
    let index = Index::create(region, geometry.clone(), Clock::System)?;
    let (long, value_of) = (vec![7; 4096], |n: u64| format!("value {n}"));
    for n in 0..500u64 {
        index.put(&n.to_le_bytes(), value_of(n).as_bytes(), PutMode::Upsert)?;
    }
    index.put(b"long", &long, PutMode::Upsert)?;

    let ((asks, asked), (reply, answers)) = (channel(), channel());
    std::thread::spawn(move || {
        for (first, words) in asked {
            let words = (first..first + words).map(|word| index.region().load(word)).collect();
            if reply.send(words).is_err() {
                break;
            }
        }
    });
    let fabric = Channel { geometry: &geometry, asks, answers, posted: VecDeque::new() };
    let mut reader = Reader::new(fabric, &geometry, Clock::System, Limits::default());
    let (mut value, keys) = (Vec::new(), (0..1000u64).map(u64::to_le_bytes).collect::<Vec<_>>());
    assert!(reader.get_into(&keys[77], &mut value)? && value == b"value 77");
    assert!(!reader.get_into(&keys[777], &mut value)?);
    assert!(reader.get_into(b"long", &mut value)? && value == long);
    reader.get_many(&keys, |n, value| {
        assert_eq!(value, (n < 500).then(|| value_of(n as u64)).as_deref().map(str::as_bytes));
    })?;
    println!("{:?}", reader.read_counts());
    Ok(())
}

/// Keys that are there and that are not, long values and batches, over a fabric of one's own.
#[test]
fn it_runs() {
    main().unwrap();
}
