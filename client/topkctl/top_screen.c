#include "clock.h"
#include "text.h"
#include "top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define LINES_UNKNOWN 24u
#define COLUMNS_UNKNOWN 80u

/* Screen of its own, cursor hidden; and back. */
#define ENTER "\033[?1049h\033[?25l\033[2J"
#define LEAVE "\033[?25h\033[?1049l"
/* A terminal that knows the mode shows what lies between at once. */
#define BEGIN "\033[?2026h\033[H"
#define END "\033[J\033[?2026l"

static volatile sig_atomic_t must_end, must_draw, must_sleep;
static bool has_screen, has_keys;
static struct termios keys_before;

static void on_signal(int number)
{
    if (number == SIGWINCH || number == SIGCONT) {
        must_draw = 1;
    } else if (number == SIGTSTP) {
        must_sleep = 1;
    } else {
        must_end = 1;
    }
}

static void write_all(const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t written = write(STDOUT_FILENO, bytes, size);
        if (written < 0 && errno != EINTR) {
            return; /* the terminal is gone; the signal for that is on its way */
        }
        if (written > 0) {
            bytes += written;
            size -= (size_t)written;
        }
    }
}

static void enter(void)
{
    if (!has_screen) {
        return;
    }
    if (has_keys) {
        struct termios keys = keys_before;
        keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        keys.c_cc[VMIN] = 0;
        keys.c_cc[VTIME] = 0;
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    write_all(ENTER, sizeof(ENTER) - 1);
}

static void leave(void)
{
    if (!has_screen) {
        return;
    }
    write_all(LEAVE, sizeof(LEAVE) - 1);
    if (has_keys) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &keys_before);
    }
}

void top_screen_open(bool is_terminal)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGTSTP, SIGCONT};
    const struct sigaction action = {.sa_handler = on_signal};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (numbers[i] == SIGTSTP && !is_terminal) {
            continue; /* nothing to put in order: it may sleep as it is */
        }
        sigaddset(&set, numbers[i]);
        (void)sigaction(numbers[i], &action, NULL);
    }
    /* They come while this thread waits, and to no other: those made later inherit the mask. */
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    has_screen = is_terminal;
    has_keys =
        is_terminal && isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &keys_before) == 0;
    enter();
}

void top_screen_close(void)
{
    leave();
    has_screen = false;
}

/* Out of the way, asleep, and back once somebody says so. */
static void sleep_now(void)
{
    sigset_t set;
    sigset_t before;
    leave();
    signal(SIGTSTP, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, SIGTSTP);
    (void)raise(SIGTSTP);
    (void)sigprocmask(SIG_UNBLOCK, &set, &before); /* here it stops */
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    const struct sigaction action = {.sa_handler = on_signal};
    (void)sigaction(SIGTSTP, &action, NULL);
    enter();
}

static bool is_end_key(void)
{
    char keys[32];
    ssize_t size = read(STDIN_FILENO, keys, sizeof(keys));
    if (size == 0) {
        has_keys = false; /* nobody types there any more */
    }
    for (ssize_t i = 0; i < size; i++) {
        if (keys[i] == 'q' || keys[i] == 'Q') {
            return true;
        }
    }
    return false;
}

enum top_event top_screen_wait(uint64_t until_ns)
{
    sigset_t none;
    sigemptyset(&none);
    for (;;) {
        if (must_end) {
            return TOP_EVENT_END;
        }
        if (must_sleep) {
            must_sleep = 0;
            must_draw = 0;
            sleep_now();
            return TOP_EVENT_DRAW;
        }
        if (must_draw) {
            must_draw = 0;
            if (has_screen) {
                return TOP_EVENT_DRAW;
            }
        }
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= until_ns) {
            return TOP_EVENT_TIME;
        }
        struct timespec left = clock_timespec(until_ns - now_ns);
        struct pollfd keys = {.fd = has_keys ? STDIN_FILENO : -1, .events = POLLIN};
        if (ppoll(&keys, 1, &left, &none) > 0 && is_end_key()) {
            return TOP_EVENT_END;
        }
    }
}

static struct winsize screen_size(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) {
        size.ws_row = LINES_UNKNOWN;
        size.ws_col = COLUMNS_UNKNOWN;
    }
    return size;
}

unsigned top_screen_lines(void)
{
    return screen_size().ws_row;
}

/* The bytes of a line that fit; `text` ends with a terminator somewhere. */
static size_t fitting(const char *text, unsigned columns)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < columns && text[bytes] != '\n' && text[bytes] != '\0'; i++) {
        size_t length = text_utf8_length(text + bytes);
        bytes += length > 0 ? length : 1;
    }
    return bytes;
}

void top_screen_show(const char *text)
{
    char *frame = NULL;
    size_t frame_size = 0;
    struct winsize size = screen_size();
    FILE *out = open_memstream(&frame, &frame_size);
    if (out == NULL) {
        return;
    }
    fputs(BEGIN, out);
    for (unsigned line = 0; line < size.ws_row && *text != '\0'; line++) {
        size_t length = fitting(text, size.ws_col);
        if (line > 0) {
            fputs("\r\n", out);
        }
        fwrite(text, 1, length, out);
        fputs("\033[K", out);
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    fputs(END, out);
    if (fclose(out) == 0) {
        write_all(frame, frame_size);
    }
    free(frame);
}
