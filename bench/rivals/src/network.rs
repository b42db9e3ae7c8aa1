//! A network of nodes in a process of its own, driven a round at a time by the process that compares.
//!
//! Each network has its process, so that what one does in the background is not counted for another, and memory is that of one.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::figures::{Cost, Moment};

/// Puts in a round; each is read three times.
const PUTS: usize = 40;
const READERS: usize = 3;

/// Where a value came from.
pub(crate) enum Got {
    /// The reader held it itself.
    Here,
    /// Others were asked for it.
    Asked,
    #[cfg_attr(not(any(feature = "libp2p", feature = "mainline")), expect(dead_code, reason = "ours is an error then"))]
    Missing,
}

/// Many nodes of one kind that know each other.
pub(crate) trait Network: Sized {
    type Id;
    /// Starts them and waits until they know their neighbours.
    fn start(count: usize) -> Result<Self, Box<dyn Error>>;
    fn put(&self, node: usize, value: Vec<u8>) -> Result<Self::Id, Box<dyn Error>>;
    fn get(&self, node: usize, id: &Self::Id) -> Result<Got, Box<dyn Error>>;
}

/// The driven process: starts the network, then does what each line of its input says.
pub(crate) fn serve<N: Network>(count: usize) -> Result<(), Box<dyn Error>> {
    let before = resident_kilobytes()?;
    let network = N::start(count)?;
    println!("ready");
    for (round, line) in std::io::stdin().lines().enumerate() {
        match line?.as_str() {
            "round" => {
                // The first is not counted: others had the processor and its caches meanwhile.
                round_of(&network, count, round * 2)?;
                let (put, get) = round_of(&network, count, round * 2 + 1)?;
                println!("{} {} {} {}", put.cpu, put.wall, get.cpu, get.wall);
            }
            "memory" => println!("{}", (resident_kilobytes()? - before) / count),
            other => return Err(format!("`{other}` is neither round nor memory").into()),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn round_of<N: Network>(network: &N, count: usize, round: usize) -> Result<(Cost, Cost), Box<dyn Error>> {
    let begun = Moment::now();
    let mut put = Vec::new();
    for n in 0..PUTS {
        let writer = (round * 7 + n * 13) % count;
        put.push((writer, network.put(writer, format!("value {round} {n}").into_bytes())?));
    }
    let cost_of_put = begun.cost_of_each(PUTS);
    let (mut asked, mut missing) = (0, 0);
    let begun = Moment::now();
    for (n, (writer, id)) in put.iter().enumerate() {
        for step in 0..READERS {
            let reader = (writer + 17 + n + step * 19) % count;
            match network.get(reader, id)? {
                Got::Here => {}
                Got::Asked => asked += 1,
                Got::Missing => missing += 1,
            }
        }
    }
    // Answers from the own store cost next to nothing; all CPU is put down to those that asked.
    let cost_of_get = begun.cost_of_each(asked);
    if missing * 20 > PUTS * READERS || asked * 2 < PUTS * READERS {
        return Err(format!("{asked} asked, {missing} found nothing, of {}", PUTS * READERS).into());
    }
    Ok((cost_of_put, cost_of_get))
}

fn resident_kilobytes() -> Result<usize, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS")).ok_or("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}

/// The driving end. The process ends with it.
pub(crate) struct Driven {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Driven {
    /// Starts a network of `count` nodes of the kind `who`, and waits until it is ready.
    pub(crate) fn start(who: &str, count: usize) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", who, &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (asks, answers) = (child.stdin.take().ok_or("no input")?, child.stdout.take().ok_or("no output")?);
        let mut driven = Self { child, asks, answers: BufReader::new(answers) };
        match driven.line()?.as_str() {
            "ready" => Ok(driven),
            other => Err(format!("{who} did not start: {other}").into()),
        }
    }

    /// What a put and a get cost in one round.
    pub(crate) fn round(&mut self) -> Result<(Cost, Cost), Box<dyn Error>> {
        self.asks.write_all(b"round\n")?;
        let line = self.line()?;
        let numbers: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [put_cpu, put_wall, get_cpu, get_wall] = numbers[..] else { return Err(format!("`{line}`?").into()) };
        Ok((Cost { cpu: put_cpu, wall: put_wall }, Cost { cpu: get_cpu, wall: get_wall }))
    }

    /// Kilobytes resident for each node.
    pub(crate) fn memory(&mut self) -> Result<f64, Box<dyn Error>> {
        self.asks.write_all(b"memory\n")?;
        Ok(self.line()?.parse()?)
    }

    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() {
            Err("the network's process ended: see its error above".into())
        } else {
            Ok(line.trim().to_owned())
        }
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
