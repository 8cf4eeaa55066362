"""What is to be checked of the agent's own host and of its way to the gateway, over gathered `HostFacts`. Pure."""

from dataclasses import dataclass

from menura.doctor import SET_NTP, Checks, Verdict, clock, failed, ok, room, unknown, warning

checks = Checks["HostFacts"]()

LEAST_DISK_BYTES = 1 << 30
LEAST_MEMORY_BYTES = 256 << 20
LEAST_OPEN_FILES = 4096
LEAST_CERTIFICATE_SECONDS = 86_400
MOST_SKEW_US = 5_000_000
OTHERS = 0o077
DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """None: could not be asked."""

    config: str
    config_mode: int
    #: it names passwords itself, not files or variables
    has_passwords: bool
    state_folder: str
    #: why it can't be written to; empty: it can
    state_error: str
    state_mode: int | None
    state_free_bytes: int | None
    open_files: int
    memory_bytes: int | None
    clock_is_synchronised: bool | None
    gateway: str
    #: why its name is no address, and why nobody answers there; empty: all is well
    gateway_name_error: str
    gateway_error: str
    gateway_is_this_host: bool
    #: the agent dials by TLS
    is_encrypted: bool
    handshake_error: str
    gateway_certificate_seconds: int | None
    #: of the agent's own certificate, until it ends and since it began; None: it has none
    certificate_seconds: int | None
    certificate_age_seconds: int | None
    identity_error: str
    #: the API's clock, which runs beside the gateway, less this host's
    api_skew_us: int | None
    policy_error: str
    policy_fix: str
    user: str
    #: whether others than root may upgrade the agent, and what the last upgrade did; empty: it is of no package
    upgrades: str = ""
    upgrade_remedy: str = ""


def _enrol(facts: HostFacts) -> str:
    return f"menura agent enrol --config {facts.config} --token TOKEN"


@checks("configuration-private", "Whoever reads the file can log in to the databases with its passwords.")
def configuration_private(facts: HostFacts) -> Verdict:
    if not facts.has_passwords:
        return ok("it has no password itself")
    if not facts.config_mode & OTHERS:
        return ok(f"only its owner reads {facts.config}")
    return failed(f"{facts.config} has a password, and mode {facts.config_mode:04o}", f"chmod 600 {facts.config}")


@checks("state-folder", "Without it the agent looks through the log for statements at each start.")
def state_folder(facts: HostFacts) -> Verdict:
    folder = facts.state_folder
    if not facts.state_error:
        return ok(f"{folder} can be written to")
    return failed(f"{folder}: {facts.state_error}", f"install -d -m 700 -o {facts.user} {folder}")


@checks("state-folder-private", "It has the agent's key, which lets whoever has it send in the agent's name.")
def state_folder_private(facts: HostFacts) -> Verdict:
    if facts.state_mode is None and facts.state_error:
        return unknown(f"{facts.state_folder} could not be looked at")
    if facts.state_mode is None:
        return ok("the agent makes it, for its user alone")
    if not facts.state_mode & OTHERS:
        return ok(f"only its owner reads {facts.state_folder}")
    return warning(f"{facts.state_folder} has mode {facts.state_mode:04o}", f"chmod 700 {facts.state_folder}")


@checks("state-folder-disk", "On a full disk the agent can't keep what it knows of tables, and their source stops.")
def state_folder_disk(facts: HostFacts) -> Verdict:
    fix = "Set state_folder in the agent's file to a folder on a disk with 1 GiB free"
    return room(facts.state_free_bytes, LEAST_DISK_BYTES, f"free below {facts.state_folder}", fix)


@checks("policy", "Without a policy that can be read the agent does not start, so that nothing leaves against it.")
def policy(facts: HostFacts) -> Verdict:
    if not facts.policy_error:
        return ok("it can be read, or there is none")
    return failed(facts.policy_error, facts.policy_fix)


@checks("open-files", "Each source takes some connections and files; without one more a source stops.")
def open_files(facts: HostFacts) -> Verdict:
    if facts.open_files >= LEAST_OPEN_FILES:
        return ok(f"{facts.open_files} files may be open")
    fix = f"Add LimitNOFILE={LEAST_OPEN_FILES} to [Service] of the agent's unit, or run: ulimit -n {LEAST_OPEN_FILES}"
    return warning(f"{facts.open_files} files may be open", fix)


@checks("memory", "A process for which there is no memory is killed, and reads again from the last commit each time.")
def memory(facts: HostFacts) -> Verdict:
    fix = "Lower dump.workers of the sources in the agent's file to 1, or give the host more memory"
    return room(facts.memory_bytes, LEAST_MEMORY_BYTES, "available of the host's memory", fix)


@checks("clock-synchronised", "A clock that nobody sets runs away, and certificates and lag are judged by it.")
def clock_synchronised(facts: HostFacts) -> Verdict:
    return clock(facts.clock_is_synchronised)


@checks("gateway-name", "A name that is no address leads nowhere.")
def gateway_name(facts: HostFacts) -> Verdict:
    if not facts.gateway_name_error:
        return ok(f"{facts.gateway} has an address")
    host = facts.gateway.rpartition(":")[0]
    return failed(
        f"{facts.gateway}: {facts.gateway_name_error}", f"Correct gateway.address, or run: getent hosts {host}"
    )


@checks("gateway-reachable", "The agent dials out to it, and sends all changes there.")
def gateway_reachable(facts: HostFacts) -> Verdict:
    if facts.gateway_name_error:
        return unknown("its name has no address")
    if not facts.gateway_error:
        return ok(f"{facts.gateway} takes connections")
    host, _, port = facts.gateway.rpartition(":")
    return failed(
        f"{facts.gateway}: {facts.gateway_error}", f"Open the way and start the gateway there: nc -vz {host} {port}"
    )


@checks("gateway-encrypted", "In the clear, whoever is on the way reads rows, and can send in the agent's name.")
def gateway_encrypted(facts: HostFacts) -> Verdict:
    if facts.is_encrypted or facts.gateway_is_this_host:
        return ok("by TLS" if facts.is_encrypted else "the gateway is on this host")
    return failed("the agent would dial in the clear", _enrol(facts))


@checks("gateway-handshake", "A gateway that does not prove who it is gets no row.")
def gateway_handshake(facts: HostFacts) -> Verdict:
    if not facts.is_encrypted:
        return ok("it is dialled without TLS")
    if facts.gateway_name_error or facts.gateway_error:
        return unknown("nobody answers there")
    if not facts.handshake_error:
        return ok("its certificate is of the CA that the agent knows")
    fix = f"With a token of the gateway that is there now: {_enrol(facts)}"
    return failed(facts.handshake_error, fix)


@checks("gateway-certificate", "With an expired certificate no agent connects any more.")
def gateway_certificate(facts: HostFacts) -> Verdict:
    if not facts.is_encrypted:
        return ok("it is dialled without TLS")
    if facts.gateway_certificate_seconds is None:
        return unknown("it has shown no certificate")
    found = f"it ends in {facts.gateway_certificate_seconds / DAY:.1f} days"
    if facts.gateway_certificate_seconds >= LEAST_CERTIFICATE_SECONDS:
        return ok(found)
    return failed(
        found, "Replace the files of the gateway's --tls-certificate and --tls-key; its own CA renews by itself"
    )


@checks("agent-identity", "Without its key and certificate the agent is nobody to the gateway.")
def agent_identity(facts: HostFacts) -> Verdict:
    if not facts.identity_error:
        return ok("it can be read" if facts.is_encrypted else "none is needed on this host")
    return failed(facts.identity_error, _enrol(facts))


@checks("agent-certificate", "With an expired certificate the gateway takes nothing from the agent.")
def agent_certificate(facts: HostFacts) -> Verdict:
    if facts.certificate_seconds is None:
        return ok("the agent has none") if not facts.identity_error else unknown("it can't be read")
    found = f"it ends in {facts.certificate_seconds / DAY:.1f} days"
    if facts.certificate_seconds >= LEAST_CERTIFICATE_SECONDS:
        return ok(found)
    return failed(found, f"Start the agent, which renews it; once it has expired: {_enrol(facts)}")


@checks("agent-certificate-begun", "A certificate of the future is refused: this host's clock is behind the gateway's.")
def agent_certificate_begun(facts: HostFacts) -> Verdict:
    if facts.certificate_age_seconds is None:
        return ok("the agent has none") if not facts.identity_error else unknown("it can't be read")
    if facts.certificate_age_seconds >= 0:
        return ok(f"it is {facts.certificate_age_seconds / DAY:.1f} days old")
    return failed(f"it begins in {-facts.certificate_age_seconds} s", SET_NTP)


@checks("gateway-clock", "Lag, freshness and certificates compare this host's clock with the gateway's.")
def gateway_clock(facts: HostFacts) -> Verdict:
    if facts.api_skew_us is None:
        return unknown("what --api names does not say its time", "Give the address of the API: menura doctor --api URL")
    found = f"its clock is {abs(facts.api_skew_us) / 1e6:.1f} s {'ahead' if facts.api_skew_us > 0 else 'behind'}"
    if abs(facts.api_skew_us) <= MOST_SKEW_US:
        return ok(found)
    return warning(found, f"Run on both hosts: {SET_NTP}")


@checks("upgrades", "A version that was refused or rolled back is not tried again by itself.")
def upgrades(facts: HostFacts) -> Verdict:
    if not facts.upgrade_remedy:
        return ok(facts.upgrades or "the agent is of no package, and is upgraded by hand")
    return warning(facts.upgrades, facts.upgrade_remedy)
