// Messages a second that QuickFIX parses and validates with a dictionary.
//
// quickfix DICTIONARY MESSAGES SECONDS; MESSAGES has each message behind its size, a little-endian
// u32. Prints how many messages were read, how many were refused, and the seconds that took.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <quickfix/DataDictionary.h>
#include <quickfix/Message.h>

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  FIX::DataDictionary dictionary(argv[1]);
  std::ifstream file(argv[2], std::ios::binary);
  std::vector<std::string> messages;
  uint32_t size;
  while (file.read(reinterpret_cast<char *>(&size), sizeof size)) {
    std::string text(size, '\0');
    file.read(&text[0], size);
    messages.push_back(text);
  }
  const double wanted = std::atof(argv[3]);
  long count = 0, refused = 0;
  double took = 0;
  std::string why;
  const auto began = std::chrono::steady_clock::now();
  do {
    for (const std::string &text : messages) {
      try {
        FIX::Message message;
        message.setString(text, true, &dictionary);
        dictionary.validate(message);
      } catch (std::exception &error) {
        ++refused;
        why = error.what();
      }
    }
    count += messages.size();
    took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  } while (took < wanted);
  if (refused) std::fprintf(stderr, "%s\n", why.c_str());
  std::printf("%ld %ld %f\n", count, refused, took);
}
